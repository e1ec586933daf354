package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
)

// order is a placement of about 300 bytes.
const order = `{"customer":{"email":"ada@example.com","name":"Ada Lovelace"},"currency":"EUR",` +
	`"items":[{"sku":"TEA-01","name":"Green tea","quantity":2,"unit_price":"4.50"},` +
	`{"sku":"CUP-07","name":"Cup, white, 0.3 l","quantity":4,"unit_price":"7.25"}],"reference":"web-17"}`

// post places orders over n connections until about as many as wanted are there, each with an idempotency
// key of its own, and returns the rate and the latencies. The client is as small as it can be, since it
// shares the machine with what it measures.
func post(ctx context.Context, handler http.Handler, n, orders int) (figures, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(listener) }() // ends at Close
	defer server.Close()
	var left atomic.Int64
	left.Store(int64(orders))
	times := make([][]float64, n)
	errs := make([]error, n)
	var wg sync.WaitGroup
	start := time.Now()
	for i := range n {
		wg.Go(func() { times[i], errs[i] = client(ctx, listener.Addr().String(), &left) })
	}
	wg.Wait()
	elapsed := time.Since(start)
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	var all []float64
	for _, t := range times {
		all = append(all, t...)
	}
	return figures{
		"rate": float64(len(all)) / elapsed.Seconds(), "p50_ms": quantile(all, 0.5), "p99_ms": quantile(all, 0.99),
	}, nil
}

func client(ctx context.Context, address string, left *atomic.Int64) (times []float64, err error) {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	in := bufio.NewReader(conn)
	var request bytes.Buffer
	for left.Add(-1) >= 0 && ctx.Err() == nil {
		request.Reset()
		fmt.Fprintf(&request, "POST /orders HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"+
			"Idempotency-Key: %s\r\nContent-Length: %d\r\n\r\n%s", uuid.NewString(), len(order), order)
		begun := time.Now()
		if _, err := conn.Write(request.Bytes()); err != nil {
			return nil, err
		}
		if err := answer(in); err != nil {
			return nil, err
		}
		times = append(times, time.Since(begun).Seconds()*1000)
	}
	return times, ctx.Err()
}

// answer reads one answer and wants a 201.
func answer(in *bufio.Reader) error {
	line, err := in.ReadSlice('\n')
	if err != nil {
		return err
	}
	if !bytes.HasPrefix(line, []byte("HTTP/1.1 201")) {
		return fmt.Errorf("the answer is %q", line)
	}
	length := 0
	for {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return err
		}
		line = bytes.TrimSpace(line)
		if len(line) == 0 {
			break
		}
		if v, ok := bytes.CutPrefix(line, []byte("Content-Length: ")); ok {
			if length, err = strconv.Atoi(string(v)); err != nil {
				return err
			}
		}
	}
	_, err = io.CopyN(io.Discard, in, int64(length))
	return err
}
