package main

import (
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/hpcexec/hpcexec"
)

func TestParseForward(t *testing.T) {
	tests := []struct {
		in   string
		want portForward // zero: refused
	}{
		{"8888", portForward{8888, "localhost", 8888}},
		{"0:8888", portForward{0, "localhost", 8888}},
		{"9000:8888", portForward{9000, "localhost", 8888}},
		{"9000:db:5432", portForward{9000, "db", 5432}},
		{"9000:[::1]:5432", portForward{9000, "::1", 5432}},
		{"65535", portForward{65535, "localhost", 65535}},
		{"", portForward{}},
		{"0", portForward{}},
		{"8888:0", portForward{}},
		{"65536", portForward{}},
		{"65536:1", portForward{}},
		{"x", portForward{}},
		{"-1", portForward{}},
		{"9000::80", portForward{}},
		{"9000:[]:80", portForward{}},
		{":80", portForward{}},
	}
	for _, tt := range tests {
		t.Run(tt.in, func(t *testing.T) {
			got, err := parseForward(tt.in)
			if tt.want == (portForward{}) {
				if !errors.Is(err, hpcexec.ErrInvalid) || hpcexec.KindName(err) != "invalid" {
					t.Errorf("got %+v, %v, want ErrInvalid", got, err)
				}
				return
			}
			if err != nil || got != tt.want {
				t.Errorf("got %+v, %v, want %+v", got, err, tt.want)
			}
		})
	}
}

func TestListenPort(t *testing.T) {
	ln, err := listenPort("127.0.0.1", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	addr := ln.Addr().(*net.TCPAddr)
	if !addr.IP.IsLoopback() || addr.Port == 0 {
		t.Errorf("got address %v, want a port of this machine alone", addr)
	}
	_, err = listenPort("127.0.0.1", addr.Port)
	if !errors.Is(err, hpcexec.ErrUnavailable) || !strings.Contains(hpcexec.Hint(err), "any port that is free") {
		t.Errorf("a used port: got %v with hint %q, want ErrUnavailable and what to do", err, hpcexec.Hint(err))
	}
}
