package sshmux

import (
	"bytes"
	"errors"
	"io"
	"testing"
)

type readWriter struct {
	io.Reader
	io.Writer
}

func TestReadSOCKSRefuses(t *testing.T) {
	for name, in := range map[string]string{
		"another protocol":     "GET / HTTP/1.0\r\n\r\n",
		"listen, version 4":    "\x04\x02\x00\x50\x7f\x00\x00\x01\x00",
		"listen, version 5":    "\x05\x01\x00\x05\x02\x00\x01\x7f\x00\x00\x01\x00\x50",
		"with a password":      "\x05\x01\x02",
		"an address of kind 9": "\x05\x01\x00\x05\x01\x00\x09",
		"an endless name":      "\x04\x01\x00\x50\x00\x00\x00\x01\x00" + string(bytes.Repeat([]byte{'x'}, 300)),
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			if _, _, _, err := readSOCKS(readWriter{bytes.NewReader([]byte(in)), &out}); !errors.Is(err, errSOCKS) {
				t.Errorf("got error %v, want %v", err, errSOCKS)
			}
		})
	}
}

func FuzzReadSOCKS(f *testing.F) {
	f.Add([]byte("\x05\x01\x00\x05\x01\x00\x03\x09localhost\x00\x50rest"))
	f.Add([]byte("\x05\x01\x00\x05\x01\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\x00\x50"))
	f.Add([]byte("\x04\x01\x00\x50\x00\x00\x00\x01me\x00localhost\x00rest"))
	f.Fuzz(func(t *testing.T, b []byte) {
		in := bytes.NewReader(b)
		var out bytes.Buffer
		_, port, answer, err := readSOCKS(readWriter{in, &out})
		if err == nil && (answer == nil || port > 65535) {
			t.Errorf("got port %d, answer %v", port, answer != nil)
		}
	})
}
