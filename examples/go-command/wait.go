package main

import (
	"encoding/binary"
	"fmt"
	"time"
	"unsafe"
)

// pollOneoff waits for the first of some things to happen. Go's own waiting can't be used: a goroutine that reads from standard
// input stops all others on this platform, and with them every timer.
//
//go:wasmimport wasi_snapshot_preview1 poll_oneoff
func pollOneoff(subscriptions, events unsafe.Pointer, count uint32, happened unsafe.Pointer) uint32

// The layout of WASI 0.1's subscriptions and events, in bytes.
const (
	subscriptionSize = 48
	eventSize        = 32
	tagAt            = 8
	contentsAt       = 16
	timeoutAt        = 24

	tagClock, tagRead = 0, 1
	monotonicClock    = 1
	standardInput     = 0
)

// endOfInputWithin waits, and returns at once when standard input ends, which is the host's notice to stop. Nothing else ever
// comes there.
func endOfInputWithin(wait time.Duration) bool {
	const timer, input = 0, 1
	var subscriptions [2 * subscriptionSize]byte
	var events [2 * eventSize]byte
	var happened uint32
	number := binary.LittleEndian

	first := subscriptions[:subscriptionSize]
	number.PutUint64(first, timer)
	first[tagAt] = tagClock
	number.PutUint32(first[contentsAt:], monotonicClock)
	number.PutUint64(first[timeoutAt:], uint64(wait))

	second := subscriptions[subscriptionSize:]
	number.PutUint64(second, input)
	second[tagAt] = tagRead
	number.PutUint32(second[contentsAt:], standardInput)

	errno := pollOneoff(unsafe.Pointer(&subscriptions), unsafe.Pointer(&events), 2, unsafe.Pointer(&happened))
	if errno != 0 {
		panic(fmt.Sprintf("poll_oneoff failed: error %d of WASI 0.1", errno))
	}
	for event := range happened {
		if number.Uint64(events[event*eventSize:]) == input {
			return true
		}
	}
	return false
}
