//go:build unix

package database

import (
	"net"
	"syscall"
)

// quiet reports whether an idle connection is open and has nothing to read. A
// server that ends a session says so first, so anything waiting means trouble;
// dropping a connection for a mere notice does no harm. It never blocks.
func quiet(c net.Conn) bool {
	if wrapped, ok := c.(interface{ NetConn() net.Conn }); ok { // TLS
		c = wrapped.NetConn()
	}
	socket, ok := c.(syscall.Conn)
	if !ok {
		return true
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return false
	}
	open := false
	// Not raw.Read: it waits for the descriptor's read lock, which a background read of
	// the driver may hold for as long as the server says nothing.
	err = raw.Control(func(fd uintptr) {
		var one [1]byte
		_, _, err := syscall.Recvfrom(int(fd), one[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		open = err == syscall.EAGAIN || err == syscall.EWOULDBLOCK || err == syscall.EINTR
	})
	return err == nil && open
}
