// Inbox announces each file that is put into a folder, once. It is a plain program: it works in a loop, and ends when its
// standard input does.
package main

import (
	"fmt"
	"os"
	"time"
)

const (
	folder = "/inbox"
	pause  = time.Second
)

func main() {
	role, term := os.Getenv("TENURE_ROLE"), os.Getenv("TENURE_TERM")
	fmt.Printf("%s watches %s in term %s\n", role, folder, term)
	known := map[string]bool{}
	for {
		files, err := os.ReadDir(folder)
		if err != nil {
			fmt.Fprintln(os.Stderr, "inbox:", err)
			os.Exit(1)
		}
		there := map[string]bool{}
		for _, file := range files {
			there[file.Name()] = true
			if !known[file.Name()] {
				fmt.Printf("new: %s\n", file.Name())
			}
		}
		known = there
		if endOfInputWithin(pause) {
			break
		}
	}
	fmt.Printf("%s was told to stop, and does\n", role)
}
