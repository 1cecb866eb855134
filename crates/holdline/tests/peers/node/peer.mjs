// A peer for holdline's tests: node-redlock and redlock-universal behind the line protocol that ../main.rs describes.
import { createInterface } from "node:readline";
import { Redis } from "ioredis";
import Redlock, { ExecutionError } from "redlock";
import Redlock4 from "redlock4";

const [servers, lease] = [process.argv[2].split(","), Number(process.argv[3])];
const clients = servers.map((server) => {
  const [host, port] = server.split(":");
  return new Redis({ host, port: Number(port) });
});
// 20 ms to 30 ms between tries; it gives up never, or after the first.
const waiting = { retryCount: -1, retryDelay: 20, retryJitter: 10 };
const kinds = { redlock: new Redlock(clients, waiting) };
// It also emits what merely means "somebody else has it".
kinds.redlock.on("error", () => {});

// The stable release of node-redlock: it has no single try but another object.
const redlock4 = (settings) => {
  const redlock = new Redlock4(clients, settings);
  redlock.on("clientError", () => {});
  return redlock;
};
const four = { lock: redlock4(waiting), try: redlock4({ retryCount: 0 }) };

async function take4(verb, name) {
  try {
    const lock = await four[verb].lock(name, lease);
    return { release: () => lock.unlock() };
  } catch (error) {
    if (error.name !== "LockError") throw error;
    return undefined;
  }
}

// A lock of redlock-universal has one key, and a number of tries instead of a wish to wait. It asks
// for a newer Node.js than the others do, so it is loaded when it is wanted.
async function takeUniversal(verb, key) {
  const { createLock, IoredisAdapter } = await import("redlock-universal");
  const waits = { retryAttempts: verb === "lock" ? 1_000_000 : 0, retryDelay: 20 };
  const adapter = new IoredisAdapter(clients[0]);
  const lock = createLock({ adapter, key, ttl: lease, ...waits });
  try {
    const handle = await lock.acquire();
    return { release: () => lock.release(handle) };
  } catch (error) {
    if (error.name !== "LockAcquisitionError") throw error;
    return undefined;
  }
}

let held;

// One try. Undefined if somebody else has the lock.
async function take(kind, name, settings) {
  try {
    return await kinds[kind].acquire([name], lease, settings);
  } catch (error) {
    if (!(error instanceof ExecutionError)) throw error;
    const tries = await Promise.all(error.attempts);
    const against = tries.flatMap((votes) => [...votes.votesAgainst.values()]);
    if (against.some((error) => error.name === "ResourceLockedError")) return undefined;
    throw against[0];
  }
}

// While it goes on trying, node-redlock keeps what it got on a few servers and counts that against
// itself, so that a tie lasts for a lease. On several servers these are therefore single tries.
async function lock(kind, name) {
  if (clients.length === 1) return take(kind, name);
  for (;;) {
    const got = await take(kind, name, { retryCount: 0 });
    if (got) return got;
    await new Promise((resolve) => setTimeout(resolve, 10 + Math.random() * 20));
  }
}

async function answer([verb, kind, name]) {
  switch (verb) {
    case "lock":
    case "try": {
      let got;
      if (kind === "redlock4") got = await take4(verb, name);
      else if (kind === "redlock-universal") got = await takeUniversal(verb, name);
      else got = await (verb === "lock" ? lock(kind, name) : take(kind, name, { retryCount: 0 }));
      held = got ?? held;
      return got ? "held -" : "refused";
    }
    case "unlock":
      await held.release();
      return "released";
    case "quit":
      return process.exit(0);
    default:
      throw new Error(`unknown command ${verb}`);
  }
}

console.log("ready");
for await (const line of createInterface({ input: process.stdin })) {
  try {
    console.log(await answer(line.split(" ")));
  } catch (error) {
    console.log(`error ${String(error).replaceAll("\n", " ")}`);
  }
}
process.exit(0);
