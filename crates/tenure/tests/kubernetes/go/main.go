// A candidate of client-go's leaderelection for one Lease, to contend with Tenure's.
// How it is run is in README.md beside it.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

func say(format string, values ...interface{}) {
	fmt.Printf(format+"\n", values...)
}

func main() {
	host := flag.String("host", "", "the API server, http://host:port")
	namespace := flag.String("namespace", "n", "its namespace")
	name := flag.String("name", "payroll", "the Lease")
	identity := flag.String("identity", "go-1", "who we are")
	lease := flag.Duration("lease", 4*time.Second, "LeaseDuration")
	token := flag.String("token", "", "a bearer token")
	insecure := flag.Bool("insecure", false, "trust any certificate (a test's)")
	flag.Parse()

	config := &rest.Config{Host: *host, BearerToken: *token}
	config.TLSClientConfig.Insecure = *insecure
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		say("failed %v", err)
		os.Exit(1)
	}
	ctx, cancel := context.WithCancel(context.Background())
	// Told to end it releases the Lease (ReleaseOnCancel).
	told := make(chan os.Signal, 1)
	signal.Notify(told, syscall.SIGTERM, os.Interrupt)
	go func() {
		<-told
		cancel()
	}()
	leaderelection.RunOrDie(ctx, leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Name: *name, Namespace: *namespace},
			Client:     client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: *identity},
		},
		ReleaseOnCancel: true,
		LeaseDuration:   *lease,
		RenewDeadline:   *lease * 2 / 3,
		RetryPeriod:     *lease / 8,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { say("leads") },
			OnStoppedLeading: func() { say("stopped") },
			OnNewLeader:      func(identity string) { say("sees %s", identity) },
		},
	})
}
