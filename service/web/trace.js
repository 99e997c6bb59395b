// What stands in a trace of PyTorch's profiler, in the format of Chrome's traces (pure).

/** Kinds of what a GPU did. */
const OF_GPU = new Set(["kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation"]);
const MOST_NAME = 200;

/** `{from, to, tracks: [{name, depth, spans: [{name, from, to, depth}]}], operators: [{name, isGpu, calls, total, self}]}`.
 *
 * Times are microseconds.  A track is a thread, or a stream of a GPU; its spans are in the order of their beginnings, and
 * `depth` says within how many others one is.  Of operators, the longest first, `total` is the time with what they call, and `self`
 * that without.  `events` are the `traceEvents`; what is no span is left out.
 */
export function traceOf(events) {
  const tracks = new Map(), names = new Map();
  for (const event of events) {
    const key = `${event?.pid}/${event?.tid}`;
    if (event?.ph === "M" && event.name === "thread_name") names.set(key, text(event.args?.name));
    // A span of the whole recording says nothing.
    if (event?.ph !== "X" || event.cat === "Trace" || !Number.isFinite(event.ts) || !(event.dur >= 0)) continue;
    if (!tracks.has(key)) tracks.set(key, { name: key, spans: [] });
    tracks.get(key).spans.push({ name: text(event.name), isGpu: OF_GPU.has(event.cat), from: event.ts, to: event.ts + event.dur });
  }
  const operators = new Map();
  let from = Infinity, to = -Infinity;
  for (const [key, track] of tracks) {
    track.name = names.get(key) || key;
    track.spans.sort((one, other) => one.from - other.from || other.to - one.to);
    track.depth = nest(track.spans, operators);
    from = Math.min(from, track.spans[0].from);
    for (const span of track.spans) to = Math.max(to, span.to);
  }
  const busiest = [...tracks.values()].sort((one, other) => other.spans.length - one.spans.length);
  return tracks.size ? { from, to, tracks: busiest, operators: [...operators.values()].sort((one, other) => other.self - one.self) } : null;
}

const text = (value) => String(value ?? "").slice(0, MOST_NAME);

/** The depth of each span of a track, and the sums of `operators`; the greatest depth, from 1 on. */
function nest(spans, operators) {
  const open = [];
  let deepest = 0;
  for (const span of spans) {
    while (open.length && open.at(-1).span.to <= span.from) open.pop().sum.open -= 1;
    const above = open.at(-1), took = span.to - span.from;
    span.depth = open.length;
    deepest = Math.max(deepest, open.length + 1);
    const name = `${span.isGpu}/${span.name}`;
    if (!operators.has(name)) operators.set(name, { name: span.name, isGpu: span.isGpu, calls: 0, total: 0, self: 0, open: 0 });
    const sum = operators.get(name);
    sum.calls += 1;
    // One that calls itself is counted once.
    if (!sum.open) sum.total += took;
    sum.open += 1;
    sum.self += took;
    if (above) above.sum.self -= Math.min(span.to, above.span.to) - span.from;
    open.push({ span, sum });
  }
  for (const { sum } of open) sum.open -= 1;
  return deepest;
}

/** The part of the spans that is drawn between two times: of those of one depth within a pixel of `perPixel`, the first. */
export function drawn(spans, from, to, perPixel) {
  const last = [];
  return spans.filter((span) => {
    if (span.to < from || span.from > to || span.to < last[span.depth] + perPixel) return false;
    last[span.depth] = span.to;
    return true;
  });
}
