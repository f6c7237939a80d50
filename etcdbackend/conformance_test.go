package etcdbackend

const workerEnv = "DISTLOCK_ETCD_WORKER"

func worker() {}
