// Command etcdserver is the etcd server, built from its module so that a
// machine without etcd packages and without a registry can run one.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
