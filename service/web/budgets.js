// The card of budgets.

import { html } from "./vendor/htm-preact-3.1.1.js";
import { getAll, useRead } from "./api.js";
import { Card, Problem, Rest } from "./parts.js";
import { chosenBudgets, drawBudget } from "./budget_course.js";
import { asOf, budgetSteps, budgetText, day, money } from "./words.js";

const MOST_BUDGETS = 12;
const HEIGHT = 110;

/** Nothing where there is no budget that the reader may see. */
export function Budgets() {
  const found = useRead("budgets", () => getAll("/v1/budgets?limit=1000", 5), 60);
  const all = found.value ?? [];
  const shown = chosenBudgets(all, MOST_BUDGETS);
  if (!shown.length) return html`<${Problem} error=${found.error} />`;
  return html`<${Card} title="Budgets" label="budgets" note="what is spent of each, in USD, over the running day or month in UTC; dashed: at the present pace; ${asOf(found.at)}" error=${found.error}>
    <div class="two">${shown.map((one) => html`<${Budget} key=${`${one.project}/${one.period}`} budget=${one} />`)}</div>
    <${Rest} shown=${shown.length} all=${all.length} command="budgets" /><//>`;
}

function Budget({ budget }) {
  const drawn = drawBudget(budget), text = budgetText(budget);
  const across = (y, name) => html`<line class=${name} x1="0" x2="100" y1=${y} y2=${y} />`;
  return html`<div class="budget"><h3>${budget.project === null ? "The whole cluster" : `Project ${budget.project}`}, ${budget.period === "day" ? "today" : "this month"}</h3>
    <p>${text}.</p>
    <div class="chart"><div class="axis muted"><span>${money(drawn.most)}</span><span>${money(drawn.most / 2)}</span><span>0</span></div>
      <svg class="burn" width="100%" height=${HEIGHT} viewBox="0 0 100 100" preserveAspectRatio="none" role="img" aria-label=${text}>
        ${across(50, "grid")}${across(100, "grid")}<polygon class="burn-area" points=${drawn.area} /><polyline class="burn-line" points=${drawn.course} />
        ${drawn.ahead && html`<polyline class="burn-ahead" points=${drawn.ahead} />`}${drawn.nextY === null ? null : across(drawn.nextY, "burn-next")}${across(drawn.limitY, "burn-limit")}</svg></div>
    <div class="title muted"><span>${day(budget.begins_at)}</span><div class="end">${budget.period === "day" ? "24:00" : day(budget.ends_at - 1)}</div></div>
    ${budgetSteps(budget).map((sentence) => html`<div class="muted">${sentence}</div>`)}</div>`;
}
