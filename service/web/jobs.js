// The view of all jobs.

import { html, useEffect, useRef, useState } from "./vendor/htm-preact-3.1.1.js";
import { get, getLong, getPages, request, useRead } from "./api.js";
import { Act, Bar, JobLink, Problem, Sentence, State, Typed, WorkersArea, useNow } from "./parts.js";
import { Submission } from "./submission.js";
import { courseOf, dueCourses } from "./job_courses.js";
import { afterAnswer, dueParts } from "./job_costs.js";
import { go } from "./addresses.js";
import { COUNT, ago, asOf, duration, money, notCancelled, phrase, rate, timeLeft } from "./words.js";

const STATES = ["queued", "admitted", "running", "paused", "succeeded", "failed", "cancelled"];
const PAGE = 100;
/** Running jobs of which the course is shown, points of each, and seconds until they are read again. */
const COURSES = 40, POINTS = 60, COURSE_S = 30;

export function Jobs({ query }) {
  const now = useNow(5);
  const [more, setMore] = useState({ path: "", pages: 1 });
  const [chosen, setChosen] = useState(new Set()), [refused, setRefused] = useState("");
  const filter = new URLSearchParams();
  for (const name of ["state", "project", "label", "array"]) if (query.get(name)) filter.set(name, query.get(name));
  filter.set("limit", PAGE);
  const path = `/v1/jobs?${filter}`;
  // All pages that are shown are read again, one after the other: the more there are, the more rarely each is.
  const pages = more.path === path ? more.pages : 1;
  const found = useRead(path, () => getPages(path, pages), 2 * pages);
  const text = (query.get("q") ?? "").toLowerCase();
  const jobs = (found.value?.items ?? [])
    .filter((job) => !text || `${job.name} ${job.id} ${Object.entries(job.labels).join(" ")}`.toLowerCase().includes(text));
  const costs = useCosts(jobs, now), courses = useCourses(jobs, now);
  const set = (name, value) => go("jobs", { ...Object.fromEntries(query), [name]: value });
  const choose = (id) => setChosen((before) => {
    const after = new Set(before);
    if (!after.delete(id)) after.add(id);
    return after;
  });
  const selected = jobs.filter((job) => chosen.has(job.id) && !job.terminal);
  const cancel = async () => {
    const errors = [];
    for (const job of selected) await request("POST", `/v1/jobs/${job.id}/cancel`).catch((error) => errors.push([job.name, error.message]));
    setRefused(notCancelled(errors));
    setChosen(new Set());
    await found.reload();
  };
  return html`
    <div class="title"><h1>Jobs</h1>
      <div class="end">${selected.length > 0 && html`<${Act} question=${`Cancel ${selected.length} jobs?`} act=${cancel}>Cancel ${selected.length} selected<//>`}</div>
    </div>
    <div class="card filters" role="search">
      <label>State<select value=${query.get("state") ?? ""} onChange=${(event) => set("state", event.target.value)}>
        <option value="">all</option>${STATES.map((state) => html`<option value=${state}>${phrase(state)}</option>`)}</select></label>
      <label>Project<${Typed} value=${query.get("project") ?? ""} done=${(text) => set("project", text)} /></label>
      <label>Label<${Typed} placeholder="name=value" value=${query.get("label") ?? ""} done=${(text) => set("label", text)} /></label>
      <label>Name, id or label contains<input type="search" value=${query.get("q") ?? ""} onInput=${(event) => set("q", event.target.value)} /></label>
    </div>
    <${Problem} error=${found.error} /><${Problem} error=${refused && { message: refused }} />
    <${Submission} submitted=${found.reload}><div class="card scroll" tabindex="0" role="region" aria-label="table of jobs">
      <table><thead><tr><th><small>select</small></th><th>job</th><th>state, and why</th><th>progress</th><th class="number">workers</th>
        <th class="wide">project</th><th class="number">cost this month</th><th class="wide">submitted</th></tr></thead>
      <tbody>${jobs.map((job) => html`<${Row} key=${job.id} job=${job} now=${now} cost=${costs.known[job.id]} course=${courses[job.id]} chosen=${chosen.has(job.id)} choose=${choose} />`)}</tbody></table>
      ${found.value && !jobs.length && html`<p class="muted">No job matches. Submit one with <code>remora submit</code>.</p>`}
      ${!found.value && !found.error && html`<p class="muted">Reading the jobs …</p>`}
      ${costs.readAt && html`<p class="muted">Costs ${asOf(costs.readAt)}.</p>`}
      ${found.value?.next_cursor && html`<p><button onClick=${() => setMore({ path, pages: pages + 1 })}>Older jobs</button></p>`}
    </div><//>`;
}

function Row({ job, now, cost, course, chosen, choose }) {
  const sizes = job.spec.workers ?? {};
  return html`<tr>
    <td>${job.terminal ? null : html`<input type="checkbox" aria-label=${`select ${job.name}`} checked=${chosen} onChange=${() => choose(job.id)} />`}</td>
    <td><${JobLink} job=${job} /><br /><small>${job.id}</small></td>
    <td class="message"><${State} state=${job.state} /><div class="why"><${Sentence} text=${job.message ?? job.why_short} /></div></td>
    <td><${Steps} job=${job} now=${now} perS=${job.state === "running" ? course?.perS : null} /></td>
    <td class="number">${job.world_size || "–"}${sizes.max === undefined ? null : html` <small>of ${sizes.min ?? 1}–${sizes.max}</small>`}${job.state === "running" && course && html`<div class="wide"><svg width="120" height="22" role="img" aria-label="workers over time"><${WorkersArea} workers=${course.workers} most=${sizes.max} x=${(at) => (120 * (at - course.from)) / Math.max(1, course.to - course.from)} to=${course.to} bottom=${22} height=${20} /></svg></div>`}</td>
    <td class="wide">${job.project}</td>
    <td class="number" title=${cost?.usd === undefined ? undefined : asOf(cost.at)}>${!cost ? "" : cost.usd || job.attempt ? money(cost.usd) : "–"}</td>
    <td class="wide" title=${new Date(job.created_at * 1000).toISOString()}>${ago(job.created_at, now)}</td>
  </tr>`;
}

/** How far a job is, its pace, and how long it still takes. */
export function Steps({ job, now, perS }) {
  if (job.step === null || job.step === undefined) return html`<small>–</small>`;
  const left = timeLeft(job, now);
  return html`<span>${COUNT.format(job.step)}${job.total_steps ? ` of ${COUNT.format(job.total_steps)}` : ""}${!left ? "" : html` <small>${duration(left)} left</small>`}${perS > 0 && html` <span class="muted wide">${rate(perS)}</span>`}</span>
    ${job.total_steps > 0 && html`<${Bar} part=${job.step / job.total_steps} label=${`progress of ${job.name}`} />`}`;
}

/** What is known by ids of jobs.  `next` says what is asked for next of what is known now; `ask` gives what is known then. */
function useKnown(jobs, now, next, ask) {
  const [known, setKnown] = useState({});
  const isAsking = useRef(false);
  useEffect(() => {
    const asked = isAsking.current || document.visibilityState !== "visible" ? null : next(known);
    if (!asked) return;
    // One after the other: the next one is asked for when this one is known.
    isAsking.current = true;
    ask(asked).then((more) => { isAsking.current = false; setKnown((before) => ({ ...before, ...more(before) })); });
  }, [jobs.map((job) => job.id).join(), known, now]);
  return known;
}

/** The course of each of the running jobs by its id, as `courseOf` says it. */
const useCourses = (jobs, now) => useKnown(jobs, now, (known) => dueCourses(jobs, known, Date.now() / 1000, COURSE_S, COURSES)[0],
  (id) => get(`/v1/jobs/${id}/metrics?points=${POINTS}`).then((page) => courseOf(page.items), () => null)
    .then((course) => (before) => ({ [id]: { ...(course ?? before[id] ?? courseOf([])), at: Date.now() / 1000 } })));

/** `{known, readAt}`: what each of these jobs has cost this month, by its id, `{usd, at}`, without `usd` where the reader may
    not see it; and when the oldest of them was read. */
function useCosts(jobs, now) {
  const known = useKnown(jobs, now, (before) => dueParts(jobs, before, Date.now() / 1000)[0],
    (ids) => getLong(`/v1/costs?by=job&limit=1000&job=${ids.join(",")}`).then((report) => [report.lines, 200], (error) => [null, error.status])
      .then(([lines, status]) => (before) => afterAnswer(ids, lines, status, before, Date.now() / 1000)));
  const times = jobs.map((job) => known[job.id]).filter((one) => one?.usd !== undefined).map((one) => one.at);
  return { known, readAt: times.length ? Math.min(...times) : null };
}
