package slurm

import (
	"encoding/json"
	"errors"
	"reflect"
	"testing"

	"github.com/hpcexec/hpcexec"
)

func TestParseJobID(t *testing.T) {
	for _, tt := range []struct {
		in      string
		want    JobID
		wantErr error
	}{
		{in: "105", want: JobID{Job: 105}},
		{in: "108;testbed", want: JobID{Job: 108, Cluster: "testbed"}},
		{in: "62_0", want: JobID{Job: 62, Part: Task}},
		{in: "62_4294967294", want: JobID{Job: 62, Part: Task, Index: 4294967294}},
		{in: "62_[1-5%2]", want: JobID{Job: 62, Part: TaskSet, Tasks: "1-5%2"}},
		{in: "62_[1,3,5-9:2]", want: JobID{Job: 62, Part: TaskSet, Tasks: "1,3,5-9:2"}},
		{in: "62_[1,3,...]", want: JobID{Job: 62, Part: TaskSet, Tasks: "1,3,..."}},
		{in: "46+1", want: JobID{Job: 46, Part: Component, Index: 1}},
		{in: "180.0", want: JobID{Job: 180, Step: "0"}},
		{in: "180.batch", want: JobID{Job: 180, Step: "batch"}},
		{in: "62_0.extern", want: JobID{Job: 62, Part: Task, Step: "extern"}},
		{in: "46+1.0", want: JobID{Job: 46, Part: Component, Index: 1, Step: "0"}},
		{in: "18446744073709551615", want: JobID{Job: 1<<64 - 1}},
		{in: "", wantErr: hpcexec.ErrInvalid},
		{in: "0", wantErr: hpcexec.ErrInvalid},
		{in: "007", wantErr: hpcexec.ErrInvalid},
		{in: "+1", wantErr: hpcexec.ErrInvalid},
		{in: "-1", wantErr: hpcexec.ErrInvalid},
		{in: "12 ", wantErr: hpcexec.ErrInvalid},
		{in: "12_", wantErr: hpcexec.ErrInvalid},
		{in: "12_[]", wantErr: hpcexec.ErrInvalid},
		{in: "12_[a]", wantErr: hpcexec.ErrInvalid},
		{in: "12;", wantErr: hpcexec.ErrInvalid},
		{in: "12.", wantErr: hpcexec.ErrInvalid},
		{in: "12.0 ; rm -rf", wantErr: hpcexec.ErrInvalid},
		{in: "Submitted batch job 12", wantErr: hpcexec.ErrInvalid},
		{in: "18446744073709551616", wantErr: hpcexec.ErrInvalid},
	} {
		t.Run(tt.in, func(t *testing.T) {
			got, err := ParseJobID(tt.in)
			if !errors.Is(err, tt.wantErr) || got != tt.want {
				t.Fatalf("got %+v, %v; want %+v, %v", got, err, tt.want, tt.wantErr)
			}
			if err == nil && got.String() != tt.in {
				t.Errorf("printed: got %q, want %q", got.String(), tt.in)
			}
		})
	}
}

func TestJobIDInJSON(t *testing.T) {
	in := struct{ A, B JobID }{JobID{Job: 62, Part: Task, Index: 3}, JobID{}}
	b, err := json.Marshal(in)
	if err != nil || string(b) != `{"A":"62_3","B":""}` {
		t.Fatalf("got %s, %v; want strings", b, err)
	}
	out := in
	out.A = JobID{}
	if err := json.Unmarshal(b, &out); err != nil || out != in {
		t.Errorf("got %+v, %v; want %+v", out, err, in)
	}
	if err := json.Unmarshal([]byte(`{"A":"nonsense"}`), &out); !errors.Is(err, hpcexec.ErrInvalid) {
		t.Errorf("got %v, want ErrInvalid", err)
	}
}

func TestEach(t *testing.T) {
	for _, tt := range []struct {
		tasks string
		want  []uint32
		limit int
		ok    bool
	}{
		{"1-5%2", []uint32{1, 2, 3, 4, 5}, 2, true},
		{"0", []uint32{0}, 0, true},
		{"1,3,7-8", []uint32{1, 3, 7, 8}, 0, true},
		{"0-10:5", []uint32{0, 5, 10}, 0, true},
		{"1,3,...", nil, 0, false},
		{"5-1", nil, 0, false},
		{"0-4000000000", nil, 0, false},
		{"0-4:0", nil, 0, false},
		{"", nil, 0, false},
	} {
		t.Run(tt.tasks, func(t *testing.T) {
			got, limit, ok := JobID{Job: 1, Part: TaskSet, Tasks: tt.tasks}.Each()
			if !reflect.DeepEqual(got, tt.want) || limit != tt.limit || ok != tt.ok {
				t.Errorf("got %v, %d, %v; want %v, %d, %v", got, limit, ok, tt.want, tt.limit, tt.ok)
			}
		})
	}
}
