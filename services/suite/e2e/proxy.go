package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
)

// Proxy passes TCP connections on to a server, until a test cuts the network between the two: by keeping what is
// sent (a partition: TCP delivers it once the network is back), or by losing it.
type Proxy struct {
	target   string
	listener net.Listener
	running  sync.WaitGroup

	mu      sync.Mutex // guards the rest
	mode    mode
	changed chan struct{} // closed when mode changes
	closed  bool
	links   map[*link]struct{}
}

type mode int

const (
	passing mode = iota
	holding
	swallowing
)

// link is one connection of a client, and the one to the server that belongs to it.
type link struct {
	client, server net.Conn // server: nil until there is one
	lost           bool     // bytes were swallowed, so it is of no use any more
}

// NewProxy listens on a loopback port and passes on to the target's.
func NewProxy(targetPort string) (*Proxy, error) {
	port, err := FreePort()
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return nil, err
	}
	p := &Proxy{
		target: net.JoinHostPort("127.0.0.1", targetPort), listener: listener,
		changed: make(chan struct{}), links: map[*link]struct{}{},
	}
	p.running.Go(p.accept)
	return p, nil
}

// Port is where clients connect.
func (p *Proxy) Port() int { return p.listener.Addr().(*net.TCPAddr).Port }

// Hold keeps all that is sent from now on, and connects nobody: what a network does that is cut and comes back.
func (p *Proxy) Hold() { p.set(holding) }

// Swallow takes all that is sent from now on and passes nothing on; connections are taken and never answered.
func (p *Proxy) Swallow() { p.set(swallowing) }

// Pass lets everything through again. Connections that lost something are closed.
func (p *Proxy) Pass() { p.set(passing) }

func (p *Proxy) set(m mode) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mode = m
	close(p.changed)
	p.changed = make(chan struct{})
	if m != passing {
		return
	}
	for l := range p.links {
		if l.lost {
			p.end(l)
		}
	}
}

// end closes both ends; mu is held. Errors would be of connections that are gone.
func (p *Proxy) end(l *link) {
	_ = l.client.Close()
	if l.server != nil {
		_ = l.server.Close()
	}
	delete(p.links, l)
}

// Close ends the proxy and all its connections.
func (p *Proxy) Close() error {
	p.mu.Lock()
	p.closed = true
	close(p.changed)
	p.changed = make(chan struct{})
	for l := range p.links {
		p.end(l)
	}
	p.mu.Unlock()
	err := p.listener.Close()
	p.running.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		l := &link{client: client}
		p.mu.Lock()
		if p.closed {
			p.mu.Unlock()
			_ = client.Close()
			return
		}
		p.links[l] = struct{}{}
		p.mu.Unlock()
		p.running.Go(func() { p.serve(l) })
	}
}

func (p *Proxy) serve(l *link) {
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.end(l)
	}()
	if !p.mayPass(l) {
		return
	}
	server, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", p.target)
	if err != nil {
		return
	}
	p.mu.Lock()
	l.server = server
	closed := p.closed
	p.mu.Unlock()
	if closed {
		return
	}
	var back sync.WaitGroup
	back.Go(func() { p.pump(l, l.server, l.client) })
	p.pump(l, l.client, l.server)
	back.Wait()
}

// pump copies one direction. When that has ended, both have.
func (p *Proxy) pump(l *link, from, to net.Conn) {
	defer func() {
		_ = from.Close()
		_ = to.Close()
	}()
	buffer := make([]byte, 32<<10)
	for {
		n, readErr := from.Read(buffer)
		pass := p.mayPass(l) // the end of a connection does not get through either
		if readErr != nil {
			return
		}
		if !pass {
			continue
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// mayPass waits while the proxy holds. It reports whether what was read may be passed on; what may not is lost.
func (p *Proxy) mayPass(l *link) bool {
	for {
		p.mu.Lock()
		m, changed := p.mode, p.changed
		if p.closed || l.lost {
			p.mu.Unlock()
			return false
		}
		if m == swallowing {
			l.lost = true
			if l.server != nil {
				p.mu.Unlock()
				return false
			}
		}
		p.mu.Unlock()
		if m == passing {
			return true
		}
		<-changed
	}
}
