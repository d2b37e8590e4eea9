// A worker of Graphile Worker with the settings of its page about performance. Its job prints the number
// of the event; if the environment has FAIL_EVERY=n, every n-th attempt fails.
const { run } = require("graphile-worker");

const failEvery = Number(process.env.FAIL_EVERY ?? 0);
let attempts = 0;

async function deliver(payload) {
  if (failEvery > 0 && ++attempts % failEvery === 0) throw new Error("one in so many");
  process.stdout.write(`${payload.number}\n`);
}

async function main() {
  const runner = await run({
    connectionString: process.argv[2],
    noHandleSignals: true,
    preset: {
      worker: {
        concurrentJobs: 24,
        maxPoolSize: 24,
        localQueue: { size: 500 },
        completeJobBatchDelay: 0,
        failJobBatchDelay: 0,
      },
    },
    logger: new (require("graphile-worker").Logger)(() => () => {}),
    taskList: { deliver },
  });
  process.stdout.write("ready\n");
  await runner.promise;
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
