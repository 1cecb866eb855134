// Node's locks behind the line protocol of `cargo xtask bench peers`, which ../README.md describes.
import { createInterface } from "node:readline";
import { Redis } from "ioredis";
import Redlock from "redlock";
import Redlock4 from "redlock4";

const LEASE = 10_000;
const [peer, url] = process.argv.slice(2);
const client = new Redis(url);

// Both wait for their default of 200 ms, and up to 100 more, between tries; and give up never.
const libraries = {
  redlock: () => {
    const redlock = new Redlock([client], { retryCount: -1, automaticExtensionThreshold: 500 });
    redlock.on("error", () => {});
    return async (name) => {
      const lock = await redlock.acquire([name], LEASE);
      return () => lock.release();
    };
  },
  redlock4: () => {
    const redlock = new Redlock4([client], { retryCount: -1 });
    redlock.on("clientError", () => {});
    return async (name) => {
      const lock = await redlock.lock(name, LEASE);
      return () => lock.unlock();
    };
  },
};

const acquire = libraries[peer]();
const now = () => Number(process.hrtime.bigint());
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const say = (answer) => process.stdout.write(answer + "\n");

// One task, until the time is over: how many it got in time, and all waits.
async function one(name, end, hold, waits) {
  let share = 0;
  for (;;) {
    const asked = now();
    if (asked >= end) return share;
    const release = await acquire(name);
    const got = now();
    const bucket = Math.floor(Math.log2(Math.max(got - asked, 1)) * 64);
    waits.set(bucket, (waits.get(bucket) ?? 0) + 1);
    if (got < end) share += 1;
    if (hold > 0) await new Promise((resolve) => setTimeout(resolve, hold / 1000));
    await release();
  }
}

async function run([prefix, names, tasks, seconds, hold]) {
  say("set");
  await lines.next();
  const end = now() + seconds * 1e9;
  const waits = new Map();
  const all = Array.from({ length: Number(tasks) }, (_, at) =>
    one(`${prefix}-${at % names}`, end, Number(hold), waits));
  return { shares: await Promise.all(all), waits: [...waits] };
}

let held = [];

async function answer([verb, ...words]) {
  if (verb === "run") return run(words);
  if (verb === "hold") {
    const start = now();
    for (let at = 0; at < Number(words[1]); at += 1) held.push(await acquire(`${words[0]}-${at}`));
    return { seconds: (now() - start) / 1e9 };
  }
  for (const release of held) await release();
  held = [];
  return {};
}

await client.ping();
say("ready");
for (let line = await lines.next(); !line.done; line = await lines.next()) {
  say(JSON.stringify(await answer(line.value.split(" "))));
}
process.exit(0);
