// The life line of a job, from its events (pure): what each worker did when, on which node.

export const PHASES = ["waiting", "paused", "preparing", "starting", "training", "regrouping", "recomputing"];
const LAST = new Set(["job.succeeded", "job.failed", "job.cancelled"]);

/** `{from, to, job, lanes, marks, checkpoints, workers}`, times in seconds since 1970.
 *
 * `job` is a list of spans `{phase, from, to}` of the whole job, `lanes` has one entry for each stay of a worker on a
 * node: `{address, rank, spans}`, in the order in which they began.  `marks` are `{at, kind, text}` with kind `loss`,
 * `change` or `notice`; `checkpoints` are times; `workers` are `{at, count}`, each valid until the next one.
 * `events` are in the order of their numbers; `now` is the end of a job that has not ended.
 */
export function lifeLine(events, now) {
  const line = new Drawing();
  for (const event of events) line.take(event);
  return line.end(now);
}

class Drawing {
  constructor() {
    this.job = [];
    this.lanes = [];
    this.marks = [];
    this.checkpoints = [];
    this.workers = [];
    // Lanes of the worker group, by rank; null where a worker was lost.
    this.group = [];
    this.isAfterLoss = false;
    this.first = null;
    this.over = null;
    this.newest = 0;
  }

  take(event) {
    // What is reported after the end changes nothing: the job has no workers any more.
    if (this.over !== null) return;
    // Records of a driver may be stored late, so that times are not always in the order of numbers.
    const at = this.newest = Math.max(this.newest, event.at);
    this.first ??= at;
    const data = event.data ?? {};
    switch (event.kind) {
      case "job.queued": this.leave(at); this.phase("waiting", at); break;
      case "job.paused": this.leave(at); this.phase("paused", at); break;
      case "attempt.created": this.isAfterLoss = false; this.phase("starting", at); break;
      case "worker_group.started": this.form(data.addresses ?? data.nodes ?? [], at); this.all("starting", at); break;
      case "environment.preparing": this.all("preparing", at); break;
      case "environment.ready": this.all("starting", at); break;
      case "attempt.started": case "job.running": this.train(at); break;
      case "training.resumed": this.isAfterLoss = false; this.all("training", at); break;
      case "attempt.regrouping": this.all("regrouping", at); this.count(0, at); break;
      case "node.lost": this.lose(data.ranks ?? [], at); break;
      case "worker.killed": this.lose([data.rank], at); break;
      case "worker_group.regrouped": this.regroup(data.addresses ?? this.group.filter(Boolean).map((lane) => lane.address), at); break;
      case "checkpoint.committed": this.checkpoints.push(at); break;
      case "attempt.ended": this.leave(at); this.phase("waiting", at); break;
      default: if (LAST.has(event.kind)) { this.leave(at); this.over = at; }
    }
    this.mark(event, at);
  }

  mark(event, at) {
    const data = event.data ?? {};
    if (event.kind === "node.lost" || event.kind === "worker.killed" || event.kind === "worker.gpu_failed" || event.kind === "worker.miscomputed") {
      this.marks.push({ at, kind: "loss", text: event.message });
    } else if (event.kind === "worker_group.regrouped") {
      const pause = typeof data.pause_s !== "number" ? "" : `, ${data.pause_s.toFixed(2)} s`;
      this.marks.push({ at, kind: "change", text: `${data.cause}: ${data.world_size} workers${pause}` });
    } else if (event.kind === "training.resumed") {
      this.marks.push({ at, kind: "change", text: event.message });
    } else if (event.kind === "worker_group.drain" || event.kind === "worker_group.grow" || event.kind === "worker_group.resize") {
      this.marks.push({ at, kind: "notice", text: event.message });
    } else if (event.kind === "job.paused" || event.kind === "checkpoint.damaged" || event.kind === "worker.straggles") {
      this.marks.push({ at, kind: "notice", text: event.message });
    }
  }

  phase(name, at) {
    turn(this.job, name, at);
  }

  all(name, at) {
    this.phase(name, at);
    for (const lane of this.group) if (lane) turn(lane.spans, name, at);
  }

  train(at) {
    this.all(this.isAfterLoss ? "recomputing" : "training", at);
    this.count(this.group.filter(Boolean).length, at);
  }

  form(addresses, at) {
    for (const lane of this.group) close(lane, at);
    this.group = addresses.map((address, rank) => this.open(address, rank));
  }

  open(address, rank) {
    const lane = { address, rank, spans: [] };
    this.lanes.push(lane);
    return lane;
  }

  lose(ranks, at) {
    for (const rank of ranks) {
      close(this.group[rank], at);
      this.group[rank] = null;
    }
    this.isAfterLoss = true;
    this.all("regrouping", at);
    this.count(this.group.filter(Boolean).length, at);
  }

  regroup(addresses, at) {
    // Those that stay keep their lanes: workers of one node are told apart by their order on it.
    const there = new Map();
    for (const lane of this.group) if (lane) there.set(lane.address, [...(there.get(lane.address) ?? []), lane]);
    const staying = new Set();
    this.group = addresses.map((address, rank) => {
      const lane = there.get(address)?.shift() ?? this.open(address, rank);
      lane.rank = rank;
      staying.add(lane);
      return lane;
    });
    for (const lanes of there.values()) for (const lane of lanes) if (!staying.has(lane)) close(lane, at);
    // The state was in memory, so that no step is done again.
    this.isAfterLoss = false;
    this.train(at);
  }

  leave(at) {
    for (const lane of this.group) close(lane, at);
    this.group = [];
    if (this.workers.length) this.count(0, at);
  }

  count(count, at) {
    if (this.workers.at(-1)?.count !== count) this.workers.push({ at, count });
  }

  end(now) {
    const to = this.over ?? Math.max(now, this.newest);
    for (const lane of [{ spans: this.job }, ...this.lanes]) close(lane, to);
    const lanes = this.lanes.filter((lane) => lane.spans.length);
    return { from: this.first ?? now, to, job: this.job, lanes, marks: this.marks, checkpoints: this.checkpoints, workers: this.workers };
  }
}

/** A span begins, and the one before ends; the same phase goes on. */
function turn(spans, phase, at) {
  const last = spans.at(-1);
  if (last && last.to === null) {
    if (last.phase === phase) return;
    last.to = at;
    if (last.to <= last.from) spans.pop();
  }
  const before = spans.at(-1);
  if (before && before.phase === phase && before.to === at) before.to = null;
  else spans.push({ phase, from: at, to: null });
}

function close(lane, at) {
  const last = lane?.spans.at(-1);
  if (last && last.to === null) last.to = Math.max(at, last.from);
}
