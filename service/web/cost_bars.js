// Lines of an account by hour and cause, as bars of equal spans of time (pure).

/** At most this number of bars, whatever the range. */
const MOST_BARS = 800;

/** `{bars: [{name, parts: [{cause, from, size, cost, node_s}]}], causes: [{cause, size, cost, node_s}], most, isFree}`.
 *
 * `lines` are `{of: {hour, cause}, cost, node_s}`; `since` and `until` are seconds since 1970, and `widthS`, whole hours,
 * is the span of a bar in UTC.  A size is a cost, and where all nodes are free (`isFree`) their time.  Each bar has the causes in one
 * order, training at the base and then the largest; `from` is the size of the ones below together, and `most` that of the largest bar, or 1.
 */
export function barsOf(lines, since, until, widthS) {
  const first = Math.floor(since / widthS);
  const count = Math.min(MOST_BARS, Math.floor(until / widthS) - first + 1);
  const isFree = lines.every((line) => !line.cost);
  const totals = new Map(), cells = Array.from({ length: count }, () => new Map());
  for (const line of lines) {
    const index = Math.floor(Date.parse(line.of.hour) / 1000 / widthS) - first;
    if (!(index >= 0 && index < count)) continue;
    for (const sums of [totals, cells[index]]) {
      const sum = sums.get(line.of.cause) ?? { cause: line.of.cause, size: 0, cost: 0, node_s: 0 };
      const cost = sum.cost + line.cost, node_s = sum.node_s + line.node_s;
      sums.set(line.of.cause, { ...sum, cost, node_s, size: isFree ? node_s : cost });
    }
  }
  const causes = [...totals.values()].sort((one, other) => isBase(other) - isBase(one) || other.size - one.size || (one.cause < other.cause ? -1 : 1));
  const bars = cells.map((sums, index) => {
    let from = 0;
    const parts = causes.filter((one) => sums.has(one.cause)).map((one) => {
      const part = { ...sums.get(one.cause), from };
      from += part.size;
      return part;
    });
    return { name: nameOf((first + index) * widthS, widthS), parts };
  });
  const most = Math.max(0, ...bars.map((bar) => bar.parts.reduce((sum, part) => sum + part.size, 0)));
  return { bars, causes, most: most || 1, isFree };
}

const isBase = (one) => Number(one.cause === "training");

/** "1 Jul 2026", and of an hour "1 Jul 2026, 13:00", in UTC. */
function nameOf(at, widthS) {
  const style = widthS < 86400 ? { dateStyle: "medium", timeStyle: "short" } : { dateStyle: "medium" };
  return new Date(at * 1000).toLocaleString("en-GB", { ...style, timeZone: "UTC" });
}
