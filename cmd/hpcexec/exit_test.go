package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/internal/session"
	"github.com/hpcexec/hpcexec/snapshots"
)

func TestExitCode(t *testing.T) {
	tests := []struct {
		name string
		err  error
		want int
		kind string // error.type in JSON
	}{
		{"none", nil, 0, ""},
		{"the command's own", exitError(3), 3, ""},
		{"invalid", hpcexec.Errorf(hpcexec.ErrInvalid, "x"), 125, "invalid"},
		{"unavailable", hpcexec.Errorf(hpcexec.ErrUnavailable, "x"), 125, "unavailable"},
		{"login", fmt.Errorf("host: %w", hpcexec.ErrNeedsLogin), 77, "needs_login"},
		{"allocation", hpcexec.ErrAllocationGone, 125, "allocation_gone"},
		{"unknown end", hpcexec.ErrUnknownEnd, 125, "unknown_end"},
		{"denied", hpcexec.ErrDenied, 125, "denied"},
		{"pending", fmt.Errorf("start: %w", &session.PendingError{Session: "x", Reason: "priority"}), 75, "unavailable"},
		{"Ctrl-C", fmt.Errorf("start: %w", &interruptError{syscall.SIGINT}), exitInterrupted, "interrupted"},
		{"TERM", &interruptError{syscall.SIGTERM}, 143, "interrupted"},
		{"ours", errors.New("a fault"), 125, "internal"},
	}
	doc := readDoc(t, "exit-codes.md")
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := exitCode(tt.err); got != tt.want {
				t.Errorf("exit code: got %d, want %d", got, tt.want)
			}
			if tt.kind == "" {
				return
			}
			if got := describe(tt.err).Type; got != tt.kind {
				t.Errorf("type: got %q, want %q", got, tt.kind)
			}
			code := fmt.Sprint(tt.want)
			if tt.kind == "interrupted" {
				code = "128+n"
			}
			kind := "`" + tt.kind + "`"
			if tt.want == exitTryLater {
				kind += ", after `--wait`"
			}
			if row := fmt.Sprintf("| %s | %s |", kind, code); !strings.Contains(doc, row) {
				t.Errorf("docs/exit-codes.md has no row %q", row)
			}
		})
	}
	if !errors.Is(&interruptError{syscall.SIGINT}, context.Canceled) {
		t.Error("an interrupt: got no cancellation, want one")
	}
}

func TestResponseCode(t *testing.T) {
	tests := []struct {
		name string
		resp hpcexec.Response
		want int
	}{
		{"own", hpcexec.Response{ExitCode: 7}, 7},
		{"signal", hpcexec.Response{ExitCode: 137, Signal: "KILL"}, 137},
		{"time-out", hpcexec.Response{ExitCode: 143, Signal: "TERM", TimedOut: true}, 124},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := responseCode(tt.resp); got != tt.want {
				t.Errorf("got %d, want %d", got, tt.want)
			}
		})
	}
}

// The table that people read is the one that the program has.
func TestExitTableInDocs(t *testing.T) {
	doc := readDoc(t, "exit-codes.md")
	_, doc, _ = strings.Cut(doc, "| --- | --- |\n")
	doc, _, _ = strings.Cut(doc, "\n\n")
	var want []string
	for _, row := range exitTable {
		want = append(want, fmt.Sprintf("| %s | %s |", row.code, row.meaning))
	}
	if diff := cmp.Diff(want, strings.Split(doc, "\n")); diff != "" {
		t.Errorf("docs/exit-codes.md differs from exitTable (-want +got):\n%s", diff)
	}
}

// Every field that a command prints is told in docs/json.md.
func TestFieldsInDocs(t *testing.T) {
	doc := readDoc(t, "json.md")
	for _, v := range []any{snapshots.Snapshot{}, snapshotJSON{}, snapshots.Image{}, execResult{}, copyResult{}, pathProblem{}, copyAction{}, session.Info{}, gpuList{}, gpuRow{}, gpuNote{}, check{}, checkup{}, errorJSON{}} {
		typ := reflect.TypeOf(v)
		for i := range typ.NumField() {
			name, _, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ",")
			if name != "" && name != "-" && !strings.Contains(doc, "`"+name+"`") {
				t.Errorf("docs/json.md says nothing of %s's field `%s`", typ.Name(), name)
			}
		}
	}
}

func readDoc(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile("../../docs/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
