package shim

import (
	"io"

	"github.com/pkg/sftp"

	"github.com/hpcexec/hpcexec"
)

// sftp serves the subsystem sftp. Relative names start where commands start.
func (s *session) sftp() {
	defer s.ch.Close()
	if !s.c.srv.begin(nil) {
		return
	}
	defer s.c.srv.done(nil)
	rw := &activeStream{s.ch, s.c.srv}
	srv, err := sftp.NewServer(rw, sftp.WithServerWorkingDirectory(s.c.srv.dir()))
	if err != nil {
		s.c.srv.log.Warn("sftp", "err", err)
		return
	}
	code := 0
	if err := srv.Serve(); err != nil && err != io.EOF {
		s.c.srv.log.Warn("sftp", "err", err)
		code = 1
	}
	srv.Close() // files that the client left open
	s.exitPlain(hpcexec.Response{ExitCode: code})
}

// An activeStream counts as activity of the shim.
type activeStream struct {
	io.ReadWriteCloser
	s *server
}

func (a *activeStream) Read(p []byte) (int, error) {
	n, err := a.ReadWriteCloser.Read(p)
	a.s.touch()
	return n, err
}

func (a *activeStream) Write(p []byte) (int, error) {
	a.s.touch()
	return a.ReadWriteCloser.Write(p)
}
