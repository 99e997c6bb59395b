// What the points of a job's metrics say of its course (pure).

/** Points from which the pace is found, the newest. */
const OF_PACE = 20;

/** `{workers: [{at, count}], from, to, perS}` of points `{at, step, attempt, world_size}` in the order of time.
 *
 * `workers` has each change; `perS` are steps of a second in the newest points, null where those since a loss are too few.
 */
export function courseOf(points) {
  const workers = [];
  for (const point of points) {
    if (workers.at(-1)?.count !== point.world_size) workers.push({ at: point.at, count: point.world_size });
  }
  const last = points.at(-1);
  let first = points.length - 1;
  while (first > 0 && points.length - first < OF_PACE && goesOn(points[first - 1], points[first])) first--;
  const seconds = last ? last.at - points[first].at : 0;
  return { workers, from: points[0]?.at ?? 0, to: last?.at ?? 0, perS: seconds > 0 ? (last.step - points[first].step) / seconds : null };
}

const goesOn = (before, after) => before.attempt === after.attempt && before.world_size === after.world_size && before.step < after.step;

/** The running jobs of which the course is asked for next, at most `most`: `known` has for each id `{at}`, when it was read. */
export function dueCourses(jobs, known, now, everyS, most) {
  return jobs.filter((job) => job.state === "running").slice(0, most)
    .filter((job) => !known[job.id] || now >= known[job.id].at + everyS).map((job) => job.id);
}
