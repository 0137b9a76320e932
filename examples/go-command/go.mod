module inbox

go 1.24
