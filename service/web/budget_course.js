// Where the course of a budget is drawn (pure).

/** `{course, area, ahead, limitY, nextY, nowX, most}` in parts of a square of 100 by 100, with 0 USD at its lower edge.
 *
 * `budget` is one of the API.  `course` is the line of what was spent, `area` that what lies below it, and `ahead` the line
 * at the present pace until the budget is used up or the period ends: points "x,y x,y".  `nextY` is the amount of the next
 * step, null where it is that of the limit or there is none; `most` is the amount in USD at the upper edge.
 */
export function drawBudget(budget) {
  const { begins_at, ends_at, limit, spent, usd_per_hour, course } = budget;
  const now = course.at(-1).at, most = Math.max(limit, spent) || 1;
  const round = (value) => Math.round(100 * value) / 100;
  const x = (at) => round((100 * (at - begins_at)) / (ends_at - begins_at)), y = (usd) => round(100 * (1 - usd / most));
  const line = course.map((point) => `${x(point.at)},${y(point.spent)}`).join(" ");
  const until = budget.runs_out_at ?? ends_at, then = Math.min(most, spent + (usd_per_hour * (until - now)) / 3600);
  return {
    course: line, area: `0,100 ${line} ${x(now)},100`, ahead: until > now ? `${x(now)},${y(spent)} ${x(until)},${y(then)}` : "",
    limitY: y(limit), nextY: budget.next_step_at === null || budget.next_step_at === limit ? null : y(budget.next_step_at), nowX: x(now), most,
  };
}

/** The budgets that are shown, at most `most`: those of the cluster, and of the others those that are spent furthest. */
export function chosenBudgets(budgets, most) {
  const part = (one) => one.fraction ?? 1;
  const rank = (one) => (one.project === null ? 0 : 1);
  return [...budgets].sort((one, other) => rank(one) - rank(other) || part(other) - part(one)).slice(0, most);
}
