package slurm

import (
	"errors"
	"maps"
	"reflect"
	"testing"

	"github.com/hpcexec/hpcexec"
)

func TestParseGRES(t *testing.T) {
	for _, tt := range []struct {
		in      string
		want    []GRES
		unknown []string
	}{
		{in: "(null)"},
		{in: ""},
		{in: "N/A"},
		{in: "gpu:a100:4", want: []GRES{{Name: "gpu", Type: "a100", Count: 4}}},
		{in: "gpu:h100:2,gpu:a100:1", want: []GRES{{Name: "gpu", Type: "h100", Count: 2}, {Name: "gpu", Type: "a100", Count: 1}}},
		{in: "gpu:h100:1(IDX:0),gpu:a100:1(IDX:2)", want: []GRES{{Name: "gpu", Type: "h100", Count: 1, Index: "0"}, {Name: "gpu", Type: "a100", Count: 1, Index: "2"}}},
		{in: "gpu:a100:3(IDX:0-1,3),shard:0", want: []GRES{{Name: "gpu", Type: "a100", Count: 3, Index: "0-1,3"}, {Name: "shard", Count: 0}}},
		{in: "gpu:a100:0(IDX:N/A)", want: []GRES{{Name: "gpu", Type: "a100", Count: 0}}},
		{in: "gpu:h100:0(IDX:),gpu:a100:1(IDX:2)", want: []GRES{{Name: "gpu", Type: "h100"}, {Name: "gpu", Type: "a100", Count: 1, Index: "2"}}},
		{in: "gpu:0", want: []GRES{{Name: "gpu"}}},
		{in: "gpu:4,shard:16", want: []GRES{{Name: "gpu", Count: 4}, {Name: "shard", Count: 16}}},
		{in: "gpu:(null):2(IDX:0-1),shard:(null):3(0/4,0/4,3/4,0/4)", want: []GRES{{Name: "gpu", Count: 2, Index: "0-1"}, {Name: "shard", Count: 3}}},
		{in: "gpu:2(IDX:0-1),shard:3(-/4,-/4,3/4,0/4)", want: []GRES{{Name: "gpu", Count: 2, Index: "0-1"}, {Name: "shard", Count: 3}}},
		{in: "gpu:h100:2(S:0),gpu:a100:1(S:1)", want: []GRES{{Name: "gpu", Type: "h100", Count: 2, Cores: "0"}, {Name: "gpu", Type: "a100", Count: 1, Cores: "1"}}},
		{in: "gpu:a100:4(S:0-1)", want: []GRES{{Name: "gpu", Type: "a100", Count: 4, Cores: "0-1"}}},
		{in: "gpu:a100_1g.5gb:7", want: []GRES{{Name: "gpu", Type: "a100_1g.5gb", Count: 7}}},
		{in: "gpu:nvidia_h100_80gb_hbm3:8", want: []GRES{{Name: "gpu", Type: "nvidia_h100_80gb_hbm3", Count: 8}}},
		{in: "gpu:1080ti:2", want: []GRES{{Name: "gpu", Type: "1080ti", Count: 2}}},
		{in: "gpu:3g.20gb", want: []GRES{{Name: "gpu", Type: "3g.20gb", Count: 1}}},
		{in: "gpu", want: []GRES{{Name: "gpu", Count: 1}}},
		{in: "gpu:a100", want: []GRES{{Name: "gpu", Type: "a100", Count: 1}}},
		{in: "gres:gpu:2", want: []GRES{{Name: "gpu", Count: 2}}},
		{in: "gres/gpu:a100:4", want: []GRES{{Name: "gpu", Type: "a100", Count: 4}}},
		{in: "gres/gpu=2", want: []GRES{{Name: "gpu", Count: 2}}},
		{in: "gres/gpu:a100=2", want: []GRES{{Name: "gpu", Type: "a100", Count: 2}}},
		{in: "lustre:no_consume:4K", want: []GRES{{Name: "lustre", Count: 4096}}},
		{in: "mps:200", want: []GRES{{Name: "mps", Count: 200}}},
		{in: "gpu:h100:2,gpu:a100:", want: []GRES{{Name: "gpu", Type: "h100", Count: 2}, {Name: "gpu", Type: "a100", Count: 1}}},
		{in: "gpu:a100:4(IDX:0-1", unknown: []string{"gpu:a100:4(IDX:0-1"}},
		{in: "gpu:a100:x:4,gpu:h100:1", want: []GRES{{Name: "gpu", Type: "h100", Count: 1}}, unknown: []string{"gpu:a100:x:4"}},
		{in: "gpu=many", unknown: []string{"gpu=many"}},
		{in: "gpu:99999999999999999999", want: []GRES{{Name: "gpu", Type: "99999999999999999999", Count: 1}}},
	} {
		t.Run(tt.in, func(t *testing.T) {
			got, unknown := ParseGRES(tt.in)
			if !reflect.DeepEqual(got, tt.want) || !reflect.DeepEqual(unknown, tt.unknown) {
				t.Errorf("got %+v, unknown %q; want %+v, unknown %q", got, unknown, tt.want, tt.unknown)
			}
		})
	}
}

func TestParseTRES(t *testing.T) {
	got := ParseTRES("cpu=4,mem=700M,node=1,billing=4,gres/gpu=4,gres/gpu:a100=4")
	want := map[string]string{"cpu": "4", "mem": "700M", "node": "1", "billing": "4", "gres/gpu": "4", "gres/gpu:a100": "4"}
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := ParseTRES(""); len(got) != 0 {
		t.Errorf("got %v, want nothing", got)
	}
}

func TestParseGPURequest(t *testing.T) {
	for _, tt := range []struct {
		in      string
		want    GPURequest
		hint    string
		wantErr error
	}{
		{in: "2", want: GPURequest{Count: 2}},
		{in: "0", want: GPURequest{}},
		{in: "a100:1", want: GPURequest{"a100", 1}},
		{in: "a100_1g.5gb:3", want: GPURequest{"a100_1g.5gb", 3}},
		{in: "a100", hint: "for one GPU of that type say a100:1", wantErr: hpcexec.ErrInvalid},
		{in: "", wantErr: hpcexec.ErrInvalid},
		{in: "-1", wantErr: hpcexec.ErrInvalid},
		{in: "a100:", wantErr: hpcexec.ErrInvalid},
		{in: ":1", wantErr: hpcexec.ErrInvalid},
		{in: "gpu:a100:1", wantErr: hpcexec.ErrInvalid},
		{in: "a100:1,h100:1", wantErr: hpcexec.ErrInvalid},
		{in: "a100:99999999", wantErr: hpcexec.ErrInvalid},
	} {
		t.Run(tt.in, func(t *testing.T) {
			got, err := ParseGPURequest(tt.in)
			if got != tt.want || !errors.Is(err, tt.wantErr) || hpcexec.Hint(err) != tt.hint {
				t.Errorf("got %+v, %v, hint %q; want %+v, %v, hint %q", got, err, hpcexec.Hint(err), tt.want, tt.wantErr, tt.hint)
			}
		})
	}
}
