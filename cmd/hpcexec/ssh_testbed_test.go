//go:build testbed

package main

import (
	"strings"
	"testing"
	"time"
)

// TestE2ESSH has the real ssh, scp, sftp, rsync and git work in a container on a
// compute node, by the stanza that `ssh config` prints.
func TestE2ESSH(t *testing.T) {
	name := newSession(t, "")
	hpc(t, "exec", "-s", name, "--on", "slurm", "--gpus", "a100:1", "--image", baseImage, "--", "true")
	dir := strings.TrimSpace(must(t, "login", "mktemp", "-d", "/home/ada/e2e-ssh.XXXXXX"))
	t.Cleanup(func() { on(t, "login", "rm", "-rf", dir) })
	sh := func(stdin, script string) ran {
		t.Helper()
		return onWith(t, "login", stdin, "sh", "-c", "cd "+dir+"; H=hpcexec-"+name+"; "+script)
	}
	if r := sh("", "hpcexec ssh config "+name+" > c && hpcexec ssh config "+name+" --via login > via && hpcexec ssh config > all"); r.code != 0 {
		t.Fatalf("ssh config: got %v", r)
	}
	tests := []struct {
		name, stdin, script string
		stdout              string
		code                int
	}{
		{"shell line", "", `ssh -F c $H 'echo $CUDA_VISIBLE_DEVICES; hostname'`, "0\ngpu1\n", 0},
		{"one stanza for all", "", `ssh -F all $H hostname`, "gpu1\n", 0},
		{"by the login node", "", `ssh -F via $H hostname`, "gpu1\n", 0},
		{"exit code", "", `ssh -F c $H 'exit 7'`, "", 7},
		{"stdin", "in\x00\xff", `ssh -F c $H cat`, "in\x00\xff", 0},
		{"terminal", "", `ssh -F c -tt $H 'test -t 0 && echo yes'`, "yes\r\n", 0},
		{"scp", "", `seq 100000 > f; scp -q -F c f $H:/tmp/f && ssh -F c $H 'cat /tmp/f' | cmp - f && echo same`, "same\n", 0},
		{"sftp", "", `echo 'get /tmp/f g' | sftp -q -F c -b - $H > /dev/null; cmp f g && echo same`, "same\n", 0},
		{"rsync", "", `mkdir -p d/e; echo x > d/e/x; rsync -a -e 'ssh -F c' d/ $H:/tmp/d/ && ssh -F c $H 'cat /tmp/d/e/x'`, "x\n", 0},
		{"git", "", `ssh -F c $H 'command -v git >/dev/null || exit 0; rm -rf r; git init -q r; cd r; git -c user.name=a -c user.email=a@b commit -q --allow-empty -m one' || exit 1
			ssh -F c $H 'command -v git' >/dev/null || { echo one; exit; }; GIT_SSH_COMMAND='ssh -F c' git clone -q $H:r k 2>/dev/null; git -C k log --format=%s`, "one\n", 0},
		{"another host key", "", `ssh -F c -o UserKnownHostsFile=/dev/null $H hostname 2>/dev/null`, "", 255},
		{"no such session", "", `ssh -F all hpcexec-nope hostname 2>&1 | head -1`, "hpcexec: no session \"nope\"\n", 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if r := sh(tt.stdin, tt.script); r.code != tt.code || r.stdout != tt.stdout {
				t.Errorf("got %v, want exit code %d and stdout %q", r, tt.code, tt.stdout)
			}
		})
	}

	// What ssh was given ends with it.
	if r := sh("", "timeout 2 ssh -n -F c $H 'exec sleep 98761'"); r.code != 124 {
		t.Errorf("ended ssh: got %v", r)
	}
	eventually(t, 5*time.Second, "the end of the command of an ssh that was ended", func() bool { return !runs(t, "sleep 98761") })

	// A session that is stopped is started by ssh.
	hpc(t, "session", "stop", name)
	if r := sh("", "ssh -F c $H hostname"); r.code != 0 || r.stdout != "gpu1\n" {
		t.Errorf("ssh to a stopped session: got %v, want gpu1", r)
	}
}

func TestE2EForward(t *testing.T) {
	name := newSession(t, "")
	hpc(t, "exec", "-s", name, "--on", "slurm", "--gpus", "h100:1", "--image", baseImage, "--",
		"sh", "-c", `cd /tmp; echo it works > page; setsid python3 -m http.server 18765 --bind 127.0.0.1 >/dev/null 2>&1 &
			until python3 -c 'import socket; socket.create_connection(("127.0.0.1", 18765))' 2>/dev/null; do sleep 0.1; done`)
	script := `log=$(mktemp); trap 'rm -f $log' EXIT
		hpcexec forward ` + name + ` 0:18765 > $log & pid=$!
		for i in $(seq 100); do test -s $log && break; sleep 0.1; done
		url=$(sed 's/ .*//' $log)
		for i in 1 2 3; do python3 -c 'import sys, urllib.request as u; print(u.urlopen(sys.argv[1] + "/page").read().decode(), end="")' $url; done
		hpcexec forward ` + name + ` ${url##*:}:18765; echo busy $?
		kill -TERM $pid; wait $pid; echo ended $?`
	r := on(t, "login", "bash", "-c", script)
	if want := "it works\nit works\nit works\nbusy 125\nended 0\n"; r.stdout != want || !strings.Contains(r.stderr, "is in use on this machine") {
		t.Errorf("got %v, want stdout %q and the port that is in use", r, want)
	}
}
