// The view of costs.

import { html } from "./vendor/htm-preact-3.1.1.js";
import { get, getLong, getPages, useRead } from "./api.js";
import { Card, JobLink, Sentence, Table } from "./parts.js";
import { go } from "./addresses.js";
import { Budgets } from "./budgets.js";
import { barsOf } from "./cost_bars.js";
import { asOf, cause, duration, isKnown, money, percent, phrase } from "./words.js";

const RANGES = [[1, "day"], [7, "7 days"], [31, "31 days"]];
const MOST_LINES = 20;
const HEIGHT = 160;

const account = (by) => (times) => getPages(`/v1/costs?by=${by}&limit=1000&${times}`, Infinity, "lines", getLong);

const dearest = (report) => [...report.lines].sort((one, other) => other.cost - one.cost || other.node_s - one.node_s);

/** The account of jobs, with the names of those that are shown, by their ids; a deleted job has none. */
async function accountOfJobs(times) {
  const report = await account("job")(times);
  const ids = dearest(report).slice(0, MOST_LINES).map((line) => line.of.job).filter(Boolean);
  const found = await Promise.all(ids.map((id) => get(`/v1/jobs/${id}`).then((job) => [id, job.name], () => [id, ""])));
  return { ...report, names: new Map(found) };
}

/** What `read` says of the last days. */
const useLast = (days, name, read) => useRead(`${name} ${days}`, () => {
  const until = Date.now() / 1000;
  return read(`since=${until - days * 86400 + 60}&until=${until}`);
}, 60);

/** A card of what was found, or of why it was refused: `children` is a function of the value. */
const Found = ({ title, note, found, children }) => html`<${Card} title=${title} note=${note} error=${found.error}>
  ${found.value ? children(found.value) : !found.error && html`<p class="muted">Reading …</p>`}<//>`;

export function Costs({ query }) {
  const days = RANGES.find(([count]) => String(count) === query.get("days"))?.[0] ?? 7;
  // One that is refused, as of too many nodes and hours, leaves the others.
  const byTime = useLast(days, "hours", account("hour,cause")), goodput = useLast(days, "goodput", (times) => getLong(`/v1/goodput?${times}`));
  const byProject = useLast(days, "projects", account("project")), byPool = useLast(days, "pools", account("pool,capacity_type")), byJob = useLast(days, "jobs", accountOfJobs);
  const all = goodput.value;
  return html`<div class="title"><h1>Costs</h1>${all && html`<small>${money(all.cost)} for ${duration(all.node_s)} of nodes, ${asOf(goodput.at)}</small>`}
      <div class="end"><label>range<select value=${days} onChange=${(event) => go("costs", { days: event.target.value })}>${RANGES.map(([count, name]) => html`<option value=${count}>${name}</option>`)}</select></label></div></div>
    <${Budgets} /><${Bars} found=${byTime} days=${days} /><${Goodput} found=${goodput} />
    <div class="two"><${Lines} title="Projects" names=${["project"]} found=${byProject} /><${Lines} title="Pools" names=${["pool", "capacity_type"]} found=${byPool} /></div>
    <${Lines} title="Jobs" names=${["job"]} found=${byJob} />`;
}

function Bars({ found, days }) {
  const span = days > 1 ? "day" : "hour", report = found.value ?? { lines: [], since: 0, until: 0 };
  const { bars, causes, most, isFree } = barsOf(report.lines, report.since, report.until, days > 1 ? 86400 : 3600);
  const width = 100 / Math.max(1, bars.length), size = (value) => (isFree ? duration(value) : money(value));
  const said = (one) => `${cause(one.cause)} ${duration(one.node_s)}, ${money(one.cost)}`;
  return html`<${Found} title="By cause" note="${isFree ? "node time" : "USD"} per ${span}, in UTC; times are node time: seconds of all nodes together" found=${found}>${() => (causes.length
    ? html`<div class="chart"><div class="axis muted"><span>${size(most)}</span><span>${size(most / 2)}</span><span>0</span></div>
      <svg width="100%" height=${HEIGHT} role="img" aria-label=${`costs by ${span} and cause`}>
      ${[0, 0.5, 1].map((part) => html`<line class="grid" x1="0" x2="100%" y1=${0.5 + part * (HEIGHT - 1)} y2=${0.5 + part * (HEIGHT - 1)} />`)}
      ${bars.map((bar, index) => bar.parts.map((part) => html`<rect class="cause-${part.cause}" x="${index * width + width * 0.1}%" width="${width * 0.8}%" y=${HEIGHT * (1 - (part.from + part.size) / most)} height=${HEIGHT * (part.size / most)}><title>${bar.name}, ${said(part)}</title></rect>`))}</svg></div>
      <div class="title muted"><span>${bars[0].name}</span><div class="end">${bars.at(-1).name}</div></div>
      <div class="legend">${causes.map((one) => html`<span><i class="cause-${one.cause}"></i>${said(one)}</span>`)}</div>`
    : html`<p class="muted">No node was paid for in this time.</p>`)}<//>`;
}

const Goodput = ({ found }) => html`<${Found} title="Goodput" found=${found}>${(goodput) => {
  const part = (some) => (isKnown(some) ? percent(some, 1) : "–");
  // What rounds to nothing is no advice.
  const saving = (one) => (one.saved_cost >= 0.01 ? money(one.saved_cost) : !goodput.cost && one.saved_node_s >= 60 ? duration(one.saved_node_s) : null);
  const losses = goodput.losses.filter((one) => one.node_s);
  return html`<p><${Sentence} text=${goodput.sentence} /></p>
    <p><b>${percent(goodput.trained_node_s, goodput.node_s)}</b> of the paid time trained <small>(scheduling: ${part(goodput.scheduling)} of it was held by jobs or Ray programs; runtime: ${part(goodput.runtime)} of what jobs held made new steps)</small></p>
    ${losses.length > 0 && html`<${Table} label="what did not train" heads="what did not train|#time|#cost|#could save|~how"
      rows=${losses.map((one) => [cause(one.cause), duration(one.node_s), money(one.cost), saving(one) ?? "–", saving(one) ? html`<${Sentence} text=${one.by} />` : html`<small>too little to matter</small>`])} />`}`;
}}<//>`;

const Lines = ({ title, names, found }) => html`<${Found} title=${title} found=${found}>${(report) => {
  const lines = dearest(report);
  return html`<${Table} label=${`costs of ${title.toLowerCase()}`} heads=${`${names.map(phrase).join("|")}|#time|#cost|#share`}
      rows=${lines.slice(0, MOST_LINES).map((line) => [...names.map((name) => html`<${Name} name=${name} value=${line.of[name]} jobs=${report.names} />`), duration(line.node_s), money(line.cost),
        report.cost ? percent(line.cost, report.cost) : percent(line.node_s, report.node_s)])} />
    ${lines.length > MOST_LINES && html`<p class="muted">The ${MOST_LINES} dearest of ${lines.length}; <code>remora ledger --by ${names.join(",")}</code> lists all.</p>`}`;
}}<//>`;

const Name = ({ name, value, jobs }) => (!value ? html`<small>not used by any ${name === "project" ? "project" : "job"}</small>`
  : name === "job" ? html`<${JobLink} id=${value} job=${{ name: jobs.get(value) || value }} /> <small>${value}</small>` : value);
