//go:build !linux

package httpserver

import "net"

// lastAccepted does nothing here: what stands in the kernel's queue is reset when the listener closes.
func lastAccepted(*net.TCPListener) ([]net.Conn, error) { return nil, nil }
