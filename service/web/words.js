// Values as people read them (pure).

export const COUNT = new Intl.NumberFormat("en");

export const isKnown = (value) => value !== null && value !== undefined;

/** 75 -> "1 min 15 s", for at most two units. */
export function duration(seconds) {
  if (!Number.isFinite(seconds)) return "";
  if (seconds < 0.95) return `${Math.max(0, seconds).toFixed(seconds < 0.1 ? 2 : 1)} s`;
  if (seconds < 10) return `${seconds.toFixed(1).replace(/\.0$/, "")} s`;
  const whole = Math.round(seconds);
  const units = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const first = units.findIndex(([size]) => whole >= size);
  const parts = [];
  let rest = whole;
  for (const [size, name] of units.slice(first, first + 2)) {
    const count = Math.floor(rest / size);
    rest -= count * size;
    if (count) parts.push(`${count} ${name}`);
  }
  return parts.join(" ");
}

/** 1234 -> "1.23 ms", and seconds as `duration` has them. */
export function microseconds(count) {
  if (count >= 1e6) return duration(count / 1e6);
  return count < 1000 ? `${PACE.format(count)} µs` : `${PACE.format(count / 1000)} ms`;
}

/** Seconds since 1970 as "3 min ago". */
export const ago = (at, now) => (at ? `${duration(Math.max(0, now - at))} ago` : "");

// Made once: a thousand lines of a log have their times.
const MOMENT = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "medium" });
const CLOCK = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" });

export const moment = (at) => (at ? MOMENT.format(at * 1000) : "");

/** A sentence of the service, in which times in UTC become those of the reader, as all others on the page are. */
export const localTimes = (text) => String(text ?? "").replace(/\b(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d) UTC\b/g, (_, date, time) => moment(Date.parse(`${date}T${time}Z`) / 1000));

export const clock = (at) => CLOCK.format(at * 1000);

/** "as of 20:41:03" for what was read at that time, with the date where that is another day. */
export function asOf(at, now = Date.now() / 1000) {
  if (!at) return "";
  return `as of ${new Date(at * 1000).toDateString() === new Date(now * 1000).toDateString() ? clock(at) : moment(at)}`;
}

const SMALL = new Intl.NumberFormat("en", { maximumSignificantDigits: 3, minimumFractionDigits: 2, maximumFractionDigits: 8, roundingPriority: "auto" });

/** 7.4 -> "7.40 USD", and 0.001234 -> "0.00123 USD": little is not nothing. */
export function money(usd) {
  if (!isKnown(usd)) return "";
  return `${usd !== 0 && Math.abs(usd) < 0.1 ? SMALL.format(usd) : usd.toFixed(2)} USD`;
}

/** 12.345 -> "12.3 steps/s", and 0.05 -> "3 steps/min". */
export function rate(perS) {
  const [value, unit] = perS >= 0.5 ? [perS, "s"] : perS * 60 >= 0.5 ? [perS * 60, "min"] : [perS * 3600, "h"];
  return `${PACE.format(value)} steps/${unit}`;
}

const PACE = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
const DAY = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", timeZone: "UTC" });
const HOUR = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", timeZone: "UTC" });

/** Seconds since 1970 as "24 Nov", in UTC. */
export const day = (at) => DAY.format(at * 1000);

const figure = (usd) => money(usd).replace(/(\.00)? USD$/, "");

/** What is spent of a budget of the API, and until when it lasts, without a full stop at the end. */
export function budgetText(budget) {
  const isDay = budget.period === "day", span = budget.pace_s === 604800 ? "week" : duration(budget.pace_s);
  const spent = `${figure(budget.spent)} of ${figure(budget.limit)} USD of ${isDay ? "this day" : "this month"} are spent`;
  if (budget.spent >= budget.limit) return `${spent}: it is used up`;
  if (!budget.usd_per_hour) return `${spent}, nothing in the last ${span}`;
  const until = budget.runs_out_at === null ? `the ${budget.period} ends` : isDay ? `${HOUR.format(budget.runs_out_at * 1000)} UTC` : day(budget.runs_out_at);
  return `${spent}; at the pace of the last ${span} it lasts until ${until}`;
}

const STEPS = {
  "stop-growing": "no more nodes are bought", "spot-only": "on-demand nodes are given back, and only spot is used",
  shrink: "jobs go on with their smallest number of workers", pause: "jobs stop at a checkpoint until there is money again",
};

export function budgetSteps(budget) {
  const found = [];
  if (budget.step_in_force) found.push(`In force: ${budget.step_in_force}, ${STEPS[budget.step_in_force]}.`);
  if (budget.next_step) found.push(`Next: ${budget.next_step} at ${figure(budget.next_step_at)} USD, when ${STEPS[budget.next_step]}.`);
  return found;
}

/** Which jobs were not cancelled, of `[name, reason]` of each; nothing where all were. */
export function notCancelled(errors) {
  const reasons = new Map();
  for (const [name, reason] of errors) reasons.set(reason, [...(reasons.get(reason) ?? []), name]);
  const found = [...reasons].map(([reason, names]) => `${names.join(", ")} (${reason.replace(/\.$/, "")})`);
  return found.length ? `${counted(errors.length, "job")} ${errors.length === 1 ? "was" : "were"} not cancelled: ${found.join("; ")}.` : "";
}

/** 1, 3 -> "33.3 %"; of nothing there is no share. */
export const percent = (part, whole) => (whole ? `${((100 * part) / whole).toFixed(1)} %` : "–");

/** Seconds until the last step at the mean pace since the job started, losses included; null: it does not run.
 *
 * NaN: too little has been seen to say, which is less than half a minute or a two-hundredth of what it would say.
 */
export function timeLeft(job, now) {
  if (job.state !== "running" || !job.total_steps || !job.step || !job.started_at) return null;
  const seen = now - job.started_at, left = (seen / job.step) * (job.total_steps - job.step);
  return seen < 30 || left > 200 * seen ? NaN : left;
}

/** What a loss cost: `{total_s, noticed_s, regrouping_s, recomputing_s, steps}` and its `cost` in USD, if it is known. */
export function lossText(loss) {
  const parts = [["noticed after", loss.noticed_s], ["regrouping and starting", loss.regrouping_s], ["recomputing", loss.recomputing_s]];
  const some = parts.filter(([, seconds]) => seconds >= 0.05).map(([name, seconds]) => `${name} ${duration(seconds)}`).join(", ");
  const steps = isKnown(loss.steps) ? `; ${counted(loss.steps, "step")} repeated` : "";
  return `${some || duration(loss.total_s)}${steps}${loss.cost === undefined ? "" : `; ${money(loss.cost)}`}${loss.isOver === false ? " so far" : ""}`;
}

const CAUSES = {
  starting: "starting or regrouping", checkpoint_stall: "checkpoint stall", idle_waiting: "idle: waits for other nodes", idle_kept: "idle after use",
  idle_unused: "not used by any job", failed: "failed machines", ray_programs: "Ray programs",
};
export const cause = (word) => CAUSES[word] ?? phrase(word);

export function bytes(count) {
  for (const [size, name] of [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) {
    if (count >= size) return `${(count / size).toFixed(1)} ${name}`;
  }
  return `${count} B`;
}

/** "waiting_for_nodes" -> "waiting for nodes". */
export const phrase = (word) => String(word ?? "").replaceAll("_", " ");

/** "node_01M8J46KTCGQC5EBAD2N5JT3JY" -> "node …JT3JY": its end differs between nodes of one moment. */
export const shortId = (id) => id.replace(/^([a-z]+)_.*(.{5})$/, "$1 …$2");

/** 1, "node" -> "1 node", and 2 -> "2 nodes". */
export const counted = (count, noun) => `${COUNT.format(count)} ${noun}${count === 1 ? "" : noun.endsWith("s") ? "es" : "s"}`;

/** "Standard_D4s_v5/1/spot" -> its size, zone and type of capacity. */
export function offering(text) {
  const [size, zone, capacity] = String(text ?? "").split("/");
  return { size: size ?? "", zone: zone && zone !== "any" ? zone : "", capacity: capacity ?? "" };
}

/** The lines of two texts: `{kind: "same"|"more"|"less", text}`; a longest common subsequence of at most 2000 lines each. */
export function difference(before, after) {
  const a = before.split("\n").slice(0, 2000), b = after.split("\n").slice(0, 2000);
  let start = 0, end = 0;
  while (start < a.length && start < b.length && a[start] === b[start]) start++;
  while (end < a.length - start && end < b.length - start && a[a.length - 1 - end] === b[b.length - 1 - end]) end++;
  const left = a.slice(start, a.length - end), right = b.slice(start, b.length - end);
  const width = right.length + 1, table = new Uint16Array((left.length + 1) * width);
  for (let i = left.length - 1; i >= 0; i--) {
    for (let j = right.length - 1; j >= 0; j--) {
      table[i * width + j] = left[i] === right[j] ? table[(i + 1) * width + j + 1] + 1
        : Math.max(table[(i + 1) * width + j], table[i * width + j + 1]);
    }
  }
  const lines = a.slice(0, start).map((text) => ({ kind: "same", text }));
  let i = 0, j = 0;
  while (i < left.length || j < right.length) {
    if (i < left.length && j < right.length && left[i] === right[j]) { lines.push({ kind: "same", text: left[i++] }); j++; }
    else if (i < left.length && (j === right.length || table[(i + 1) * width + j] >= table[i * width + j + 1])) lines.push({ kind: "less", text: left[i++] });
    else lines.push({ kind: "more", text: right[j++] });
  }
  return [...lines, ...(end ? a.slice(a.length - end) : []).map((text) => ({ kind: "same", text }))];
}
