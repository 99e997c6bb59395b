// The view of all jobs: a table that updates itself, with filters in the address, selection and submission.

import { html, useState } from "./vendor/htm-preact-3.1.1.js";
import { get, request, useRead } from "./api.js";
import { Act, Bar, Problem, State, useNow } from "./parts.js";
import { Submission } from "./submission.js";
import { addressOf, go } from "./addresses.js";
import { COUNT, ago, duration, money, phrase, timeLeft } from "./words.js";

const STATES = ["queued", "admitted", "running", "paused", "succeeded", "failed", "cancelled"];
const PAGE = 100;

export function Jobs({ query }) {
  const now = useNow(5);
  const [more, setMore] = useState({ key: "", items: [], cursor: null });
  const [chosen, setChosen] = useState(new Set());
  const filter = new URLSearchParams();
  for (const name of ["state", "project", "label", "array"]) if (query.get(name)) filter.set(name, query.get(name));
  filter.set("limit", PAGE);
  const path = `/v1/jobs?${filter}`;
  const found = useRead(path, () => get(path), 2);
  const costs = useRead("costs", readCosts, 120).value ?? new Map();
  const rest = more.key === path ? more : { items: [], cursor: found.value?.next_cursor };
  const first = found.value?.items ?? [];
  const known = new Set(first.map((job) => job.id));
  const text = (query.get("q") ?? "").toLowerCase();
  const jobs = [...first, ...rest.items.filter((job) => !known.has(job.id))]
    .filter((job) => !text || `${job.name} ${job.id} ${Object.entries(job.labels).join(" ")}`.toLowerCase().includes(text));
  const set = (name, value) => go("jobs", { ...Object.fromEntries(query), [name]: value });
  const loadMore = async () => {
    const page = await get(`${path}&cursor=${encodeURIComponent(rest.cursor)}`);
    setMore({ key: path, items: [...rest.items, ...page.items], cursor: page.next_cursor });
  };
  const choose = (id) => setChosen((before) => {
    const after = new Set(before);
    if (!after.delete(id)) after.add(id);
    return after;
  });
  const selected = jobs.filter((job) => chosen.has(job.id) && !job.terminal);
  const cancel = async () => {
    for (const job of selected) await request("POST", `/v1/jobs/${job.id}/cancel`);
    setChosen(new Set());
    await found.reload();
  };
  return html`
    <div class="title"><h1>Jobs</h1>
      <div class="end">${selected.length ? html`<${Act} question=${`Cancel ${selected.length} jobs?`} act=${cancel}>Cancel ${selected.length} selected<//>` : null}</div>
    </div>
    <div class="card filters" role="search">
      <label>State<select value=${query.get("state") ?? ""} onChange=${(event) => set("state", event.target.value)}>
        <option value="">all</option>${STATES.map((state) => html`<option value=${state}>${phrase(state)}</option>`)}</select></label>
      <label>Project<input value=${query.get("project") ?? ""} onChange=${(event) => set("project", event.target.value.trim())} /></label>
      <label>Label<input placeholder="name=value" value=${query.get("label") ?? ""} onChange=${(event) => set("label", event.target.value.trim())} /></label>
      <label>Name, id or label contains<input type="search" value=${query.get("q") ?? ""} onInput=${(event) => set("q", event.target.value)} /></label>
    </div>
    <${Problem} error=${found.error} />
    <${Submission} submitted=${found.reload}><div class="card scroll" tabindex="0" role="region" aria-label="table of jobs">
      <table><thead><tr><th><span class="muted">select</span></th><th>job</th><th>state, and why</th><th>progress</th><th class="number">workers</th>
        <th class="wide">project</th><th class="number">cost this month</th><th class="wide">submitted</th></tr></thead>
      <tbody>${jobs.map((job) => html`<${Row} key=${job.id} job=${job} now=${now} cost=${costs.get(job.id)} chosen=${chosen.has(job.id)} choose=${choose} />`)}</tbody></table>
      ${found.value && !jobs.length ? html`<p class="muted">No job matches. Submit one with <code>remora submit</code>.</p>` : null}
      ${!found.value && !found.error ? html`<p class="muted">Reading the jobs …</p>` : null}
      ${rest.cursor ? html`<p><button onClick=${loadMore}>Older jobs</button></p>` : null}
    </div><//>`;
}

function Row({ job, now, cost, chosen, choose }) {
  const sizes = job.spec.workers ?? {};
  return html`<tr>
    <td>${job.terminal ? null : html`<input type="checkbox" aria-label=${`select ${job.name}`} checked=${chosen} onChange=${() => choose(job.id)} />`}</td>
    <td><a href=${addressOf(`jobs/${job.id}`)}>${job.name}</a><br /><span class="muted">${job.id}</span></td>
    <td class="message"><${State} state=${job.state} /><div class="why">${job.message ?? job.why_short ?? ""}</div></td>
    <td><${Steps} job=${job} now=${now} /></td>
    <td class="number">${job.world_size || "–"}${sizes.max === undefined ? null : html` <span class="muted">of ${sizes.min ?? 1}–${sizes.max}</span>`}</td>
    <td class="wide">${job.project}</td>
    <td class="number">${job.attempt ? money(cost) : "–"}</td>
    <td class="wide" title=${new Date(job.created_at * 1000).toISOString()}>${ago(job.created_at, now)}</td>
  </tr>`;
}

/** How far a job is, and how long it still takes at its mean pace. */
export function Steps({ job, now }) {
  if (job.step === null || job.step === undefined) return html`<span class="muted">–</span>`;
  const left = timeLeft(job, now);
  return html`<span>${COUNT.format(job.step)}${job.total_steps ? ` of ${COUNT.format(job.total_steps)}` : ""}${!left ? "" : html` <span class="muted">${duration(left)} left</span>`}</span>
    ${job.total_steps ? html`<${Bar} part=${job.step / job.total_steps} label=${`progress of ${job.name}`} />` : null}`;
}

/** What each job has cost this month, for those whose costs the reader may see; the first thousand. */
async function readCosts() {
  try {
    const report = await get("/v1/costs?by=job&limit=1000");
    return new Map(report.lines.map((line) => [line.of.job, line.cost]));
  } catch {
    return new Map();
  }
}
