package shim

import (
	"io"

	"github.com/pkg/sftp"

	"github.com/hpcexec/hpcexec"
)

// sftp serves the subsystem sftp. Relative names start where commands start.
func (s *session) sftp() {
	defer s.ch.Close()
	srv := s.c.srv
	rw := &activeStream{s.ch, srv}
	files, err := sftp.NewServer(rw, sftp.WithServerWorkingDirectory(srv.dir()))
	if err != nil {
		srv.log.Warn("sftp", "err", err)
		return
	}
	code := 0
	if err := files.Serve(); err != nil { // closes what the client left open
		srv.log.Info("sftp", "err", err)
		code = 1
	}
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
