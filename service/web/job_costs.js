// Which costs of jobs are asked for next (pure).

/** Jobs of one request, as many as the API takes. */
const PART = 50;
/** Seconds after which a cost is asked for again. */
const AGAIN_S = { live: 120, failed: 60, ended: 3600 };
/** Seconds after its end in which a job's last records may be on their way. */
const SETTLES_S = 600;

/** Parts of ids that are asked for at `now`, each of one project, as a reader may see the costs of some: `[[id, ...], ...]`.
 *
 * `known` has for ids of `jobs` what `afterAnswer` says.
 */
export function dueParts(jobs, known, now) {
  const byProject = new Map(), parts = [];
  for (const job of jobs) {
    if (!isDue(job, known[job.id], now)) continue;
    if (known[job.id]?.isAlone) { parts.push([job.id]); continue; }
    const ids = byProject.get(job.project) ?? [];
    ids.push(job.id);
    byProject.set(job.project, ids);
  }
  for (const ids of byProject.values()) {
    for (let first = 0; first < ids.length; first += PART) parts.push(ids.slice(first, first + PART));
  }
  return parts;
}

function isDue(job, seen, now) {
  if (!seen) return true;
  const isSettled = job.ended_at && seen.at > job.ended_at + SETTLES_S;
  return now >= seen.at + (seen.hasFailed ? AGAIN_S.failed : isSettled ? AGAIN_S.ended : AGAIN_S.live);
}

/** What is known of each of these jobs after an answer at `now`: `{usd, at, hasFailed, isAlone}` by id.
 *
 * `lines` are those of the answer; null: it was refused, with `status`.  One job that is gone has all of them refused: each
 * is asked for alone then, at once.
 */
export function afterAnswer(ids, lines, status, known, now) {
  const costs = new Map((lines ?? []).map((line) => [line.of.job, line.cost]));
  return Object.fromEntries(ids.map((id) => {
    if (lines !== null) return [id, { usd: costs.get(id) ?? 0, at: now, hasFailed: false, isAlone: false }];
    const isGone = status === 404 && ids.length > 1;
    return [id, { usd: known[id]?.usd, at: isGone ? 0 : now, hasFailed: true, isAlone: status === 404 }];
  }));
}
