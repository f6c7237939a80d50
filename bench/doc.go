// Package bench measures lock backends side by side on real servers, and sets
// the figures beside the claims of a well-known comparison of Redis, ZooKeeper
// and etcd.
//
// [Run] starts the servers, runs the [Workloads] one backend after another and
// returns a [Report], which writes itself for a terminal, as Markdown and as
// JSON. The command "distlock bench" is a thin shell around it.
//
// # What the figures are
//
// Throughput counts cycles of Lock and Unlock. Loops are closed: a caller sends
// its next request when the last was answered, so a stall of the server delays
// what follows instead of counting against it. Percentiles come from a
// high-dynamic-range histogram with three significant digits. A wait that is cut
// off by the end of the run counts with what it had waited.
//
// While measuring, a witness inside each lock checks that nobody enters while
// another still holds, and that tokens grow from holder to holder. A violation
// voids the figures of that cell.
//
// A call that fails or does not return in time ends its workload, and the cell
// says so; no figure is made of what was left.
//
// The same workloads run under "go test -bench", in the format of benchstat.
package bench
