package httpserver

import (
	"errors"
	"net"
	"os"
	"syscall"
)

// lastAccepted ends listening and returns the connections that stood in the kernel's queue: clients
// take them for made and may have sent a request, so to close the listener with them in the queue
// would reset them. Looking and ending follow each other directly, which leaves the
// smallest gap that the system allows.
func lastAccepted(l *net.TCPListener) ([]net.Conn, error) {
	raw, err := l.SyscallConn()
	if err != nil {
		return nil, err
	}
	var queued []int
	var failed error
	err = raw.Control(func(fd uintptr) {
		for {
			conn, _, err := syscall.Accept4(int(fd), syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC)
			switch {
			case err == nil:
				queued = append(queued, conn)
				continue
			case errors.Is(err, syscall.EINTR), errors.Is(err, syscall.ECONNABORTED):
				continue
			case !errors.Is(err, syscall.EAGAIN):
				failed = os.NewSyscallError("accept4", err)
			}
			break
		}
		if err := syscall.Shutdown(int(fd), syscall.SHUT_RD); err != nil {
			failed = errors.Join(failed, os.NewSyscallError("shutdown", err))
		}
	})
	var conns []net.Conn
	for _, fd := range queued {
		file := os.NewFile(uintptr(fd), "connection")
		conn, err := net.FileConn(file) // a copy
		failed = errors.Join(failed, err, file.Close())
		if err == nil {
			conns = append(conns, conn)
		}
	}
	return conns, errors.Join(err, failed)
}
