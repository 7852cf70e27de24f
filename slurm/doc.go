// Package slurm drives a Slurm cluster from a login node, through the site's
// own programs and any [hpcexec.Executor], so that it works as well from a
// laptop over ssh as on the login node itself.
//
//	        Client                                 what it asks
//	┌────────────────────────┐
//	│ Preflight  GPUs  Nodes │── scontrol show node -d -o, show partition -o
//	│ Submit                 │── squeue (is it there already?), sbatch
//	│ Job  Jobs  Wait        │── squeue, then sacct, then scontrol show job
//	│ Cancel                 │── squeue (is it ours?), scancel, squeue
//	│ Allocation: Executor   │── srun --jobid N --overlap
//	└───────────┬────────────┘
//	            ▼
//	  base Executor: Local or an SSH connection, on the login node
//
// Three rules hold everywhere:
//
//   - The text formats come first: squeue with a format of our own, scontrol's
//     one-line records, sacct -P. They are the same from release 20.11 to 26.05
//     (testdata has outputs of four), JSON isn't. What isn't known is kept as it
//     came, and never read as "finished".
//   - A failed question is no answer. "Unknown" is a state; a job is gone only
//     when the controller says so, twice and by two programs.
//   - Only jobs that carry our tag, a comment hpcexec:v1:TOKEN, are changed. The
//     token makes [Client.Submit] idempotent: after a lost reply the job is
//     looked up before another one is made.
//
// The programs run with a scrubbed environment (launch.go): format variables,
// SLURM_* of an outer job, and the caller's secrets don't reach them, since
// sbatch stores its environment on the controller and srun sends it along.
package slurm
