// Command bench measures what a command costs, side by side in one run: on
// this machine, in a container, and in a container on a compute node; through
// hpcexec and through the programs that people use for it today. It runs on
// the testbed's login node; `make bench` starts it.
//
// Every round runs a short block of each row, so that whatever else the machine
// does hits all rows alike. Ratios of medians are what counts; times are of the machine.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/internal/session"
	"github.com/hpcexec/hpcexec/sshmux"
)

// A row is one way to run a command.
type row struct {
	Where string `json:"where"` // "here", "container here", "container on NODE", …
	How   string `json:"how"`
	Peer  bool   `json:"peer"` // a program that isn't hpcexec

	// sample takes n samples, one after the other.
	sample func(ctx context.Context, n int) ([]time.Duration, error)

	Median time.Duration `json:"median_ns"`
	P90    time.Duration `json:"p90_ns"`
	Ratio  float64       `json:"ratio"` // of its median to that of fork+exec
	took   []time.Duration
}

// A target is a line of DESIGN's table of what to hold.
type target struct {
	What  string  `json:"what"`
	Got   float64 `json:"got"`
	Reach string  `json:"reach"`
	OK    bool    `json:"ok"`
}

// block is how often a row is run at a time: a warm session is one that is
// used, as by a loop or an agent.
const block = 11

func main() {
	forks := flag.Int("forks", 0, "print the nanoseconds of N times fork+exec of true, and end")
	rounds := flag.Int("rounds", 9, "how often the block of each row is run")
	image := flag.String("image", "/scratch/images/base.sif", "image of the sessions")
	node := flag.String("node", "cpu1", "compute node that ssh reaches")
	out := flag.String("json", "", "file for the result as JSON")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if *forks > 0 {
		if err := printForks(ctx, *forks); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(1)
		}
		return
	}
	if err := bench(ctx, *rounds, *image, *node, *out); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func bench(ctx context.Context, rounds int, image, node, out string) (err error) {
	exe, err := exec.LookPath("hpcexec")
	if err != nil {
		return err
	}
	if exe, err = filepath.EvalSymlinks(exe); err != nil {
		return err
	}
	dirs, err := session.FindDirs(os.Getenv)
	if err != nil {
		return err
	}
	m := &session.Manager{Dirs: dirs, Exe: exe, Progress: func(p session.Progress) { fmt.Fprintln(os.Stderr, p.Text) }}
	rows, cleanup, err := setUp(ctx, m, image, node)
	defer cleanup()
	if err != nil {
		return err
	}
	for i := range rounds {
		for _, r := range rows {
			took, err := r.sample(ctx, block)
			if err != nil {
				return fmt.Errorf("%s, %s: %w", r.Where, r.How, err)
			}
			if i > 0 { // what comes first warms caches
				r.took = append(r.took, took[1:]...)
			}
		}
	}
	for _, r := range rows {
		slices.Sort(r.took)
		r.Median, r.P90 = r.took[len(r.took)/2], r.took[len(r.took)*9/10]
		r.Ratio = float64(r.Median) / float64(rows[0].Median)
	}
	targets := judge(rows)
	show(rows, targets)
	if out == "" {
		return nil
	}
	b, err := json.MarshalIndent(map[string]any{"rounds": rounds, "rows": rows, "targets": targets}, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(out, append(b, '\n'), 0o644)
}

// setUp makes the sessions and the peers' connections. cleanup ends them, also
// after an error.
func setUp(ctx context.Context, m *session.Manager, image, node string) (rows []*row, cleanup func(), err error) {
	var undo []func()
	cleanup = func() {
		for _, f := range slices.Backward(undo) {
			f()
		}
	}
	done, cancel := context.WithCancel(context.WithoutCancel(ctx))
	undo = append(undo, cancel)
	open := func(name string, o session.Options) (*sshmux.Client, session.Info, error) {
		undo = append(undo, func() { m.Remove(done, name) })
		info, err := m.Ensure(ctx, session.Want{Name: name, Options: o})
		if err != nil {
			return nil, info, err
		}
		client, err := sshmux.Open(info.Control)
		return client, info, err
	}
	here, _, err := open("bench-here", session.Options{Place: "local", Image: image})
	if err != nil {
		return nil, cleanup, err
	}
	there, info, err := open("bench-there", session.Options{Place: "slurm", Image: image, Partition: "cpu"})
	if err != nil {
		return nil, cleanup, err
	}

	// The peers get what they do best: a warm instance and a warm master.
	tmp, err := os.MkdirTemp("", "hpcexec-bench-")
	if err != nil {
		return nil, cleanup, err
	}
	undo = append(undo, func() { os.RemoveAll(tmp) })
	master := filepath.Join(tmp, "m")
	if err := quiet(ctx, "ssh", "-M", "-S", master, "-o", "ControlPersist=yes", "-fN", node); err != nil {
		return nil, cleanup, err
	}
	undo = append(undo, func() { quiet(done, "ssh", "-S", master, "-O", "exit", node) })
	peerOverlay := filepath.Join(tmp, "overlay")
	if err := os.Mkdir(peerOverlay, 0o700); err != nil {
		return nil, cleanup, err
	}
	if err := quiet(ctx, "apptainer", "-s", "instance", "start", "--containall", "--no-home", "--overlay", peerOverlay, image, "bench-peer"); err != nil {
		return nil, cleanup, err
	}
	undo = append(undo, func() { quiet(done, "apptainer", "-s", "instance", "stop", "bench-peer") })
	farPeer := "/scratch/" + os.Getenv("USER") + "/bench-peer-overlay"
	if err := quiet(ctx, "ssh", "-S", master, node, "mkdir -p "+farPeer+" && apptainer -s instance start --containall --no-home --overlay "+farPeer+" "+image+" bench-far"); err != nil {
		return nil, cleanup, err
	}
	undo = append(undo, func() {
		quiet(done, "ssh", "-S", master, node, "apptainer -s instance stop bench-far; chmod -R u+rwx "+farPeer+"; rm -rf "+farPeer)
	})

	peer := func(where string, argv ...string) *row {
		how := strings.ReplaceAll(strings.Join(argv, " "), master, "SOCK")
		return &row{Where: where, How: how, Peer: true, sample: timed(func(ctx context.Context) error { return quiet(ctx, argv...) })}
	}
	process := func(where, name string) *row {
		return &row{Where: where, How: "hpcexec exec, a whole process", sample: timed(func(ctx context.Context) error {
			return quiet(ctx, m.Exe, "exec", "-s", name, "--", "true")
		})}
	}
	api := func(where string, ex hpcexec.Executor) *row {
		return &row{Where: where, How: "hpcexec, Go API", sample: timed(func(ctx context.Context) error {
			resp, err := ex.Run(ctx, hpcexec.Request{Args: []string{"true"}})
			if err == nil && resp.ExitCode != 0 {
				err = fmt.Errorf("exit code %d", resp.ExitCode)
			}
			return err
		})}
	}
	on := "container on " + info.Node
	forkHere, err := forkRow(ctx, "container here", here)
	if err != nil {
		return nil, cleanup, err
	}
	forkThere, err := forkRow(ctx, on, there)
	if err != nil {
		return nil, cleanup, err
	}
	echo, err := echoRow(done, on, there)
	if err != nil {
		return nil, cleanup, err
	}
	return []*row{
		{Where: "here, bare", How: "fork+exec of true", Peer: true, sample: forkSamples},
		forkHere,
		peer("container here", "apptainer", "exec", "instance://bench-peer", "true"),
		api("container here", here),
		process("container here", "bench-here"),
		forkThere,
		echo,
		peer("bare on "+node, "ssh", "-S", master, node, "true"),
		peer("bare on "+info.Node, "srun", "--jobid", info.JobID, "--overlap", "-N1", "-n1", "--input=none", "true"),
		peer("container on "+node, "ssh", "-S", master, node, "apptainer exec instance://bench-far true"),
		api(on, there),
		process(on, "bench-there"),
	}, cleanup, nil
}

func quiet(ctx context.Context, argv ...string) error {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	var errs strings.Builder
	cmd.Stderr = &errs
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w: %s", argv[0], err, strings.TrimSpace(errs.String()))
	}
	return nil
}

// judge compares the rows with what the design promises. What hpcexec adds to a
// command is compared with fork+exec in the same container: a program there is
// loaded through FUSE, with and without hpcexec.
func judge(rows []*row) []target {
	fork, instance, apiHere := rows[1].Median, rows[2].Median, rows[3].Median
	forkThere, echo, ssh, apiThere, processThere := rows[5].Median, rows[6].Median, rows[7].Median, rows[10].Median, rows[11].Median
	ratio := func(a, b time.Duration) float64 { return float64(a) / float64(b) }
	atMost := func(what string, got, most float64) target {
		return target{what, got, fmt.Sprintf("≤ %g", most), got <= most}
	}
	atLeast := func(what string, got, least float64) target {
		return target{what, got, fmt.Sprintf("≥ %g", least), got >= least}
	}
	return []target{
		atMost("Go API, container here / fork+exec in it", ratio(apiHere, fork), 1.5),
		atLeast("apptainer exec instance:// / Go API, container here", ratio(instance, apiHere), 40),
		atMost("Go API, container on a node without the round trip / fork+exec in it", ratio(apiThere-echo, forkThere), 2),
		atMost("hpcexec exec, container on a node / ssh -S, no container", ratio(processThere, ssh), 1),
	}
}

func show(rows []*row, targets []target) {
	t := table.NewWriter()
	t.SetOutputMirror(os.Stdout)
	t.AppendHeader(table.Row{"where", "how", "median", "p90", "× fork+exec"})
	for _, r := range rows {
		t.AppendRow(table.Row{r.Where, r.How, ms(r.Median), ms(r.P90), fmt.Sprintf("%.2f", r.Ratio)})
	}
	t.Render()
	t = table.NewWriter()
	t.SetOutputMirror(os.Stdout)
	t.AppendHeader(table.Row{"ratio", "got", "reach", ""})
	for _, g := range targets {
		verdict := "reached"
		if !g.OK {
			verdict = "missed"
		}
		t.AppendRow(table.Row{g.What, fmt.Sprintf("%.2f", g.Got), g.Reach, verdict})
	}
	t.Render()
}

func ms(d time.Duration) string { return fmt.Sprintf("%.2f ms", float64(d)/1e6) }
