// The life line of a job, from its events (pure): what each worker did when, on which node.

export const PHASES = ["waiting", "paused", "preparing", "starting", "training", "checkpoint_stall", "regrouping", "recomputing"];
const LAST = new Set(["job.succeeded", "job.failed", "job.cancelled"]);
/** Phases in which a training loop may wait for a checkpoint. */
const DOES_STEPS = new Set(["training", "recomputing"]);
/** Ends of attempts that are no loss. */
const MEANT = new Set(["paused", "completed"]);
/** Kinds of events with a mark that has their sentence. */
const MARKED = new Map(Object.entries({
  loss: "node.lost worker.killed worker.gpu_failed worker.miscomputed worker.collectives_failed worker_group.hung",
  change: "training.resumed",
  notice: "worker_group.drain worker_group.grow worker_group.resize job.paused worker.straggles " +
    "checkpoint.damaged checkpoint.refused checkpoint.abandoned checkpoint.incomplete",
}).flatMap(([mark, kinds]) => kinds.split(" ").map((kind) => [kind, mark])));

/** All kinds of events that change the line, but that of checkpoints that were committed, of which a job may have any number. */
export const CHANGES = [...new Set([...LAST, ...MARKED.keys(), ..."job.queued attempt.created worker_group.started environment.preparing environment.ready attempt.started job.running training.began attempt.regrouping worker_group.regrouped attempt.ended".split(" ")])];

/** `{from, to, job, lanes, marks, losses, checkpoints, workers}`, times in seconds since 1970.
 *
 * `job` is a list of spans `{phase, from, to}` of the whole job, `lanes` has one entry for each stay of a worker on a
 * node: `{address, rank, spans}`, in the order in which they began.  `marks` are `{at, kind, text}` with kind `loss`,
 * `change` or `notice`, and for what began a loss its `loss`, an index; `checkpoints` are times; `workers` are
 * `{at, count}`, each valid until the next one.
 *
 * `losses` are what took workers from the job, preemptions with a notice among them: `{at, from, to, cause, isOver,
 * noticed_s, regrouping_s, recomputing_s, total_s, steps}` from the last step before it to the first new one after it,
 * or to `now`; the seconds are wall time of the job and sum to `total_s`; `steps` were done again (null: not known yet).
 * `events` are in the order of their numbers; `now` is the end of a job that has not ended.
 */
export function lifeLine(events, now) {
  const line = new Drawing();
  for (const event of events) line.take(event);
  return line.end(now);
}

/** The line with `stalls` as a phase of their own, where training waited for checkpoints: `{from, to}` in the order of time.
 *
 * They are one in the job and in each lane that did steps then.
 */
export function withStalls(line, stalls) {
  return { ...line, job: cut(line.job, stalls), lanes: line.lanes.map((lane) => ({ ...lane, spans: cut(lane.spans, stalls) })) };
}

function cut(spans, stalls) {
  const found = [];
  let next = 0;
  for (const span of spans) {
    let from = span.from;
    while (next < stalls.length && stalls[next].to <= from) next++;
    for (let at = next; DOES_STEPS.has(span.phase) && at < stalls.length && stalls[at].from < span.to; at++) {
      const begin = Math.max(from, stalls[at].from), end = Math.min(span.to, stalls[at].to);
      if (begin > from) found.push({ ...span, from, to: begin });
      if (end > begin) found.push({ phase: "checkpoint_stall", from: begin, to: end });
      from = Math.max(from, end);
    }
    if (from < span.to || from === span.from) found.push({ ...span, from });
  }
  return found;
}

class Drawing {
  constructor() {
    this.job = [];
    this.lanes = [];
    this.marks = [];
    this.losses = [];
    // What a notice said that no loss has followed yet.
    this.notice = null;
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
      case "training.began": this.repaint("training", at, at); break;
      case "training.resumed":
        // The group had started before it repeated the first step.
        if (typeof data.recomputing_s === "number") {
          this.repaint("recomputing", at - data.recomputing_s, at);
          if (data.recomputing_s > 0) this.redo(at - data.recomputing_s);
        }
        this.isAfterLoss = false;
        this.all("training", at);
        break;
      case "attempt.regrouping": this.all("regrouping", at); this.count(0, at); break;
      case "node.lost": this.lose(data.ranks ?? [], at); break;
      case "worker.killed": this.lose([data.rank], at); break;
      // Lanes of workers that end, end with the next group.
      case "worker_group.hung": this.lose([], at); break;
      case "worker_group.regrouped": this.regroup(data.addresses ?? this.group.filter(Boolean).map((lane) => lane.address), at); break;
      case "checkpoint.committed": this.checkpoints.push(at); break;
      case "attempt.ended": this.leave(at); this.phase("waiting", at); break;
      default: if (LAST.has(event.kind)) { this.leave(at); this.over = at; }
    }
    this.mark(event, at);
  }

  mark(event, at) {
    const data = event.data ?? {}, before = this.losses.length;
    this.account(event, data, at);
    if (this.losses.length > before) {
      this.marks.push({ at, kind: "loss", text: event.message, loss: before });
    } else if (event.kind === "worker_group.regrouped") {
      const pause = typeof data.pause_s !== "number" ? "" : `, ${data.pause_s.toFixed(2)} s`;
      this.marks.push({ at, kind: "change", text: `${data.cause}: ${data.world_size} workers${pause}` });
    } else if (MARKED.has(event.kind)) {
      this.marks.push({ at, kind: MARKED.get(event.kind), text: event.message });
    }
  }

  /** What is lost, from the event that says so to the one that says that it is won back. */
  account(event, data, at) {
    switch (event.kind) {
      case "node.lost": case "worker.killed": this.miss(event.message, at); break;
      case "worker_group.hung": this.miss(event.message, at, { from: at - (data.quiet_s ?? 0) }); break;
      case "worker_group.drain": case "worker.gpu_failed": case "worker.miscomputed": case "worker.collectives_failed": this.notice = event.message; break;
      case "attempt.regrouping": if (this.notice) this.miss(this.notice, at); break;
      case "worker_group.regrouped":
        if ((data.cause === "drain" || data.cause === "loss") && this.losses.at(-1)?.to !== at) {
          const pause_s = typeof data.pause_s === "number" ? data.pause_s : 0;
          this.miss(this.notice ?? event.message, at - pause_s);
          Object.assign(this.losses.at(-1), { to: at, steps: 0 });
        }
        this.notice = null;
        break;
      case "training.resumed": this.win(at, data); break;
      case "training.began": this.win(at); break;
      case "attempt.ended": if (!MEANT.has(data.end_reason)) this.miss(event.message, at, { isOfAttempt: true }); break;
      case "job.paused": this.win(at); break;
      default: if (LAST.has(event.kind)) this.dropLast(at);
    }
  }

  /** Losses before the next new step are one. */
  miss(cause, at, more = {}) {
    const last = this.losses.at(-1);
    if (last && last.to === null) Object.assign(last, more, { from: Math.min(last.from, more.from ?? at) });
    else this.losses.push({ at, from: at, to: null, cause, steps: null, ...more });
    this.notice = null;
  }

  win(at, data = {}) {
    const last = this.losses.at(-1);
    if (!last) return;
    // In place the group goes on before its first new step is reported.
    const isLate = last.to !== null && typeof data.pause_s === "number" && (last.from === last.at || last.steps === null) && at - data.pause_s <= last.to;
    if (last.to !== null && !isLate) return;
    last.to = at;
    if (typeof data.pause_s === "number") last.from = Math.min(last.at, at - data.pause_s);
    if (typeof data.repeated_steps === "number") last.steps = data.repeated_steps;
  }

  /** The end of the last attempt is the end of the job, and no loss. */
  dropLast(at) {
    const last = this.losses.at(-1);
    if (last && last.to === null && last.isOfAttempt && last.from === last.at && at - last.at < 1) {
      const index = this.losses.length - 1;
      this.losses.pop();
      this.marks = this.marks.filter((mark) => mark.loss !== index);
    } else this.win(at);
  }

  phase(name, at) {
    begin(this.job, name, at);
  }

  all(name, at) {
    this.phase(name, at);
    for (const lane of this.group) if (lane) begin(lane.spans, name, at);
  }

  /** The present span of this phase began only at `since`: until then the workers were starting. */
  repaint(phase, since, at) {
    for (const spans of [this.job, ...this.group.filter(Boolean).map((lane) => lane.spans)]) {
      const last = spans.at(-1);
      if (last?.phase !== phase || last.to !== null || since <= last.from) continue;
      last.phase = "starting";
      const before = spans.at(-2);
      if (before?.phase === "starting" && before.to === last.from) { before.to = null; spans.pop(); }
      begin(spans, phase, Math.min(since, at));
    }
  }

  train(at) {
    this.all(this.isAfterLoss ? "recomputing" : "training", at);
    if (!this.isAfterLoss && !this.losses.at(-1)?.isOfAttempt) this.win(at);
    this.count(this.group.filter(Boolean).length, at);
  }

  /** A group that goes on in place trains from its start on: what it did since then were steps done before. */
  redo(since) {
    for (const spans of [this.job, ...this.group.filter(Boolean).map((lane) => lane.spans)]) {
      const last = spans.at(-1);
      if (last?.phase !== "training" || last.to !== null) continue;
      if (since <= last.from) last.phase = "recomputing";
      else begin(spans, "recomputing", since);
    }
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
    this.notice = null;
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
    const losses = withParts(this.losses, this.job, to);
    return { from: this.first ?? now, to, job: this.job, lanes, marks: this.marks, losses, checkpoints: this.checkpoints, workers: this.workers };
  }
}

/** A span begins, and the one before ends; the same phase goes on. */
function begin(spans, phase, at) {
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

/** Losses with the seconds of their parts, by the spans of the job; both are in the order of time, so that it is linear. */
export function withParts(losses, spans, now) {
  let first = 0;
  return losses.map((loss) => {
    const to = loss.to ?? now;
    while (first > 0 && spans[first - 1].to > loss.at) first--;
    while (first < spans.length && spans[first].to <= loss.at) first++;
    let recomputing_s = 0;
    for (let index = first; index < spans.length; index++) {
      const span = spans[index];
      if (span.from >= to) break;
      if (span.phase === "recomputing") recomputing_s += Math.max(0, Math.min(span.to, to) - Math.max(span.from, loss.at));
    }
    return parts(loss, to, recomputing_s);
  });
}

function parts(loss, to, recomputing_s) {
  const noticed_s = loss.at - loss.from, total_s = to - loss.from;
  return { at: loss.at, from: loss.from, to, cause: loss.cause, isOver: loss.to !== null, noticed_s, recomputing_s,
    regrouping_s: Math.max(0, total_s - noticed_s - recomputing_s), total_s, steps: loss.steps };
}

function close(lane, at) {
  const last = lane?.spans.at(-1);
  if (last && last.to === null) last.to = Math.max(at, last.from);
}
