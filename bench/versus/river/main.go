// A worker of River. Its job prints the number of the event; if the environment has FAIL_EVERY=n, every n-th attempt fails.
//
//	river migrate|work URL
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

type event struct {
	Number int64 `json:"number"`
}

func (event) Kind() string { return "deliver" }

type worker struct {
	river.WorkerDefaults[event]
	lock      sync.Mutex
	out       *bufio.Writer
	failEvery int
	attempts  int
}

func (w *worker) Work(_ context.Context, job *river.Job[event]) error {
	w.lock.Lock()
	defer w.lock.Unlock()
	w.attempts++
	if w.failEvery > 0 && w.attempts%w.failEvery == 0 {
		return errors.New("one in so many")
	}
	fmt.Fprintln(w.out, job.Args.Number)
	return w.out.Flush()
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Args[2])
	check(err)
	driver := riverpgxv5.New(pool)
	if os.Args[1] == "migrate" {
		migrator, err := rivermigrate.New(driver, nil)
		check(err)
		_, err = migrator.Migrate(ctx, rivermigrate.DirectionUp, nil)
		check(err)
		return
	}
	workers := river.NewWorkers()
	failEvery, _ := strconv.Atoi(os.Getenv("FAIL_EVERY"))
	river.AddWorker(workers, &worker{out: bufio.NewWriter(os.Stdout), failEvery: failEvery})
	client, err := river.NewClient(driver, &river.Config{
		Queues:  map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 1_000}},
		Workers: workers,
		// As in River's own benchmark. Jobs that are inserted by SQL notify nobody.
		FetchCooldown:     2 * time.Millisecond,
		FetchPollInterval: 20 * time.Millisecond,
		// Otherwise each failed job is a line.
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError + 1})),
	})
	check(err)
	check(client.Start(ctx))
	fmt.Println("ready")
	select {}
}
