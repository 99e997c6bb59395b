// The view of one job: its life line, metrics, logs, files, specification, attempts and costs.

import { html, useEffect, useMemo, useState } from "./vendor/htm-preact-3.1.1.js";
import { get, getAll, request, useRead, useStream } from "./api.js";
import { Act, Problem, State, useNow } from "./parts.js";
import { Steps, timeLeft } from "./jobs.js";
import { lifeLine } from "./life_line.js";
import { LifeLine } from "./life_line_view.js";
import { Metrics } from "./plots.js";
import { Logs } from "./logs.js";
import { addressOf, go } from "./addresses.js";
import { COUNT, bytes, difference, duration, moment, money, phrase } from "./words.js";

/** Events that are read before the life line is drawn; later ones arrive by the stream. */
const MOST_EVENTS = 20_000;

export function JobView({ id, query }) {
  const found = useRead(`/v1/jobs/${id}`, () => get(`/v1/jobs/${id}`), 2);
  const job = found.value;
  const others = (query.get("with") ?? "").split(",").filter(Boolean);
  const compared = useRead(`with ${others}`, () => Promise.all(others.map((one) => get(`/v1/jobs/${one}`))), 0);
  if (!job) return html`<${Problem} error=${found.error} />${found.error ? null : html`<p class="muted">Reading the job …</p>`}`;
  const act = (what) => async () => { await request("POST", `/v1/jobs/${id}/${what}`); await found.reload(); };
  const canPause = !job.terminal && !job.pause_requested_at && job.state !== "paused";
  return html`
    <div class="title"><h1>${job.name}</h1><${State} state=${job.state} /><span class="muted">${job.id} · project ${job.project} · <code>${(job.spec.command ?? []).join(" ")}</code></span>
      <div class="end">${canPause ? html`<${Act} act=${act("pause")}>Pause<//>` : null}
        ${job.pause_requested_at && !job.terminal ? html`<${Act} act=${act("resume")}>Resume<//>` : null}
        ${job.terminal ? null : html`<${Act} question=${`Cancel ${job.name}?`} act=${act("cancel")}>Cancel<//>`}</div></div>
    <${Problem} error=${found.error} />
    ${job.message ? html`<div class="notice">${job.message}</div>` : null}
    ${job.why_short ? html`<div class="notice">Why not more workers: ${job.why_short}</div>` : null}
    <${Cards} job=${job} />
    <${Life} job=${job} />
    <div class="two"><${Money} job=${job} /><${Compare} id=${id} query=${query} others=${compared.value ?? []} error=${compared.error} /></div>
    <${Metrics} job=${job} others=${compared.value ?? []} isLive=${!job.terminal} />
    <${Logs} job=${job} />
    <div class="two"><${Checkpoints} id=${id} isLive=${!job.terminal} /><${Outputs} id=${id} isLive=${!job.terminal} /></div>
    <${Profiles} id=${id} isLive=${!job.terminal} />
    <${Attempts} id=${id} isLive=${!job.terminal} />
    <${Specification} job=${job} other=${compared.value?.[0]} />`;
}

function Cards({ job }) {
  const now = useNow(1);
  const left = timeLeft(job, now);
  const sizes = job.spec.workers ?? {};
  const card = (name, value, note) => html`<div class="card"><span class="muted">${name}</span><b>${value}</b><small class="muted">${note}</small></div>`;
  return html`<div class="cards">
    <div class="card"><span class="muted">Step</span><b><${Steps} job=${{ ...job, state: "" }} now=${now} /></b></div>
    ${card("Time left", left === null ? "–" : duration(left), "at the mean pace so far")}
    ${card("Workers", job.world_size, sizes.max === undefined ? "" : `of ${sizes.min ?? 1} to ${sizes.max}`)}
    ${card("Lost to failures", duration(job.lost_s), `${COUNT.format(job.repeated_steps)} steps repeated`)}
    ${card("Since it started", job.started_at ? duration((job.ended_at ?? now) - job.started_at) : "–", moment(job.started_at))}
  </div>`;
}

/** Events so far and those that follow, without gaps: pages first, then the stream after the last one. */
function useEvents(job) {
  const path = `/v1/jobs/${job.id}/events`;
  const before = useRead(path, () => getAll(`${path}?limit=1000`, MOST_EVENTS / 1000), 0);
  const last = before.value?.at(-1)?.seq ?? 0;
  const later = useStream(before.value && !job.terminal ? path : null, last, "event", MOST_EVENTS);
  // A job that ended meanwhile has its last events in the list.
  useEffect(() => { if (job.terminal && before.value) before.reload(); }, [job.terminal]);
  return { events: useMemo(() => [...(before.value ?? []), ...later.filter((event) => event.seq > last)], [before.value, later]), error: before.error };
}

function Life({ job }) {
  // A line of thousands of events is made again when some come, and otherwise every few seconds.
  const now = useNow(job.terminal ? 3600 : 5);
  const { events, error } = useEvents(job);
  const listed = useRead("nodes", () => getAll("/v1/nodes?limit=1000", 2), job.terminal ? 0 : 15);
  const nodes = useMemo(() => byAddress(listed.value ?? []), [listed.value]);
  const line = useMemo(() => lifeLine(events, job.ended_at ?? now), [events, job.ended_at, job.ended_at ? 0 : now]);
  return html`<${Problem} error=${error} />
    ${events.length ? html`<${LifeLine} line=${line} job=${job} nodes=${nodes} />` : null}
    <${Events} events=${events} />`;
}

function Events({ events }) {
  const [isOpen, setOpen] = useState(false);
  return html`<details class="card" onToggle=${(event) => setOpen(event.currentTarget.open)}><summary>All ${events.length} events</summary>
    ${isOpen ? html`<div class="scroll" tabindex="0" role="region" aria-label="events"><table>
      <thead><tr><th>time</th><th>event</th><th>message</th></tr></thead>
      <tbody>${events.slice(-500).reverse().map((event) => html`<tr key=${event.seq}><td>${moment(event.at)}</td><td>${event.kind}</td><td class="message">${event.message}</td></tr>`)}</tbody></table></div>` : null}
    ${events.length > 500 ? html`<p class="muted">The newest 500 are shown; <code>remora events</code> prints all.</p>` : null}</details>`;
}

/** Nodes by their addresses, each of which may have been another machine's before. */
function byAddress(nodes) {
  const found = new Map();
  for (const node of nodes) if (node.address) found.set(node.address, [...(found.get(node.address) ?? []), node]);
  return found;
}

function Money({ job }) {
  const found = useRead(`ledger ${job.id}`, () => get(`/v1/jobs/${job.id}/ledger`), job.terminal ? 0 : 10);
  const ledger = found.value;
  return html`<div class="card"><h2>Costs</h2><${Problem} error=${found.error} />
    ${ledger ? html`<p><b>${money(ledger.cost)}</b> <span class="muted">for ${duration(ledger.node_s)} of nodes${ledger.start_up_s ? `, and ${money(ledger.start_up_cost)} while machines started for it` : ""}${ledger.budget === null ? "" : `; its budget is ${money(ledger.budget)}`}</span></p>
      <div class="scroll" tabindex="0" role="region" aria-label="costs by kind of node"><table><thead><tr><th>pool</th><th>size</th><th>capacity</th><th class="number">nodes</th><th class="number">time</th><th class="number">cost</th></tr></thead>
      <tbody>${ledger.lines.map((line) => html`<tr key=${`${line.pool} ${line.size} ${line.zone} ${line.capacity}`}><td>${line.pool}</td><td>${line.size}</td><td>${line.capacity ?? "–"}</td><td class="number">${line.nodes}</td><td class="number">${duration(line.node_s)}</td><td class="number">${money(line.cost)}</td></tr>`)}</tbody></table></div>` : null}
    <${Causes} job=${job} /></div>`;
}

/** What each cause of its paid time cost, for those who may see it; a job older than 31 days shows its last 31. */
function Causes({ job }) {
  const until = job.ended_at ? job.ended_at + 3600 : Date.now() / 1000;
  const since = Math.max(job.created_at - 3600, until - 31 * 86400 + 60);
  const times = `job=${job.id}&since=${since}&until=${until}`;
  const found = useRead(`causes ${job.id} ${job.terminal}`, async () => {
    try {
      const [costs, goodput] = await Promise.all([get(`/v1/costs?by=cause&limit=100&${times}`), get(`/v1/goodput?${times}`)]);
      return { lines: costs.lines, goodput };
    } catch (error) {
      // What a viewer may not see is left out.
      if (error.status === 403) return { lines: [], goodput: null };
      throw error;
    }
  }, job.terminal ? 0 : 15);
  const { lines = [], goodput = null } = found.value ?? {};
  const sum = lines.reduce((total, line) => total + line.node_s, 0);
  if (!sum) return html`<${Problem} error=${found.error} />`;
  return html`<h2>Where the paid time went</h2>
    <div class="share">${lines.map((line) => html`<i class="cause-${line.of.cause}" style=${{ width: `${(100 * line.node_s) / sum}%` }} title=${`${phrase(line.of.cause)}: ${duration(line.node_s)}, ${money(line.cost)}`}></i>`)}</div>
    <div class="legend">${[...lines].sort((one, other) => other.node_s - one.node_s).map((line) => html`<span><i class="cause-${line.of.cause}"></i>${phrase(line.of.cause)} ${duration(line.node_s)}, ${money(line.cost)}</span>`)}</div>
    ${goodput ? html`<p>${goodput.sentence}</p>` : null}`;
}

function Compare({ id, query, others, error }) {
  const [text, setText] = useState("");
  const set = (ids) => go(`jobs/${id}`, { ...Object.fromEntries(query), with: ids.join(",") });
  const add = (event) => {
    event.preventDefault();
    if (text.trim()) set([...new Set([...others.map((job) => job.id), text.trim()])].slice(0, 6));
    setText("");
  };
  return html`<div class="card"><h2>Compare with other jobs</h2><${Problem} error=${error} />
    <form onSubmit=${add} class="filters"><label>id of a job<input value=${text} onInput=${(event) => setText(event.target.value)} placeholder="job_..." /></label><button>Add</button></form>
    ${others.map((job) => html`<p><a href=${addressOf(`jobs/${job.id}`)}>${job.name}</a> <${State} state=${job.state} /> <button aria-label=${`remove ${job.name}`} onClick=${() => set(others.filter((one) => one !== job).map((one) => one.id))}>remove</button></p>`)}
    <p class="muted">Its metrics are laid over those of this job, and the specification below shows what differs from the first one.</p></div>`;
}

function Checkpoints({ id, isLive }) {
  const found = useRead(`checkpoints ${id}`, () => get(`/v1/jobs/${id}/checkpoints`), isLive ? 5 : 0);
  const items = [...(found.value?.items ?? [])].reverse();
  return html`<div class="card"><h2>Checkpoints</h2><${Problem} error=${found.error} />
    ${found.value && !items.length ? html`<p class="muted">None is complete yet.</p>` : null}
    ${items.length ? html`<div class="scroll" tabindex="0" role="region" aria-label="checkpoints"><table><thead><tr><th class="number">step</th><th class="number">workers</th><th class="number">size</th><th>committed</th><th></th></tr></thead>
    <tbody>${items.map((one) => html`<tr key=${one.step}><td class="number">${COUNT.format(one.step)}</td><td class="number">${one.world_size}</td><td class="number">${bytes(one.size_bytes)}</td><td>${moment(one.committed_at)}</td>
      <td><a href=${`/v1/jobs/${id}/checkpoints/${one.step}/content`} download>download</a></td></tr>`)}</tbody></table></div>` : null}</div>`;
}

function Profiles({ id, isLive }) {
  const found = useRead(`profiles ${id}`, () => get(`/v1/jobs/${id}/profiles`), isLive ? 5 : 0);
  const items = found.value?.items ?? [];
  if (!items.length) return null;
  return html`<div class="card"><h2>Profiles</h2><${Problem} error=${found.error} />
    <div class="scroll" tabindex="0" role="region" aria-label="profiles"><table><thead><tr><th class="number">rank</th><th class="number">steps</th><th>asked for</th><th>state</th><th class="number">size</th></tr></thead>
    <tbody>${items.map((one) => html`<tr key=${one.number}><td class="number">${one.rank}</td><td class="number">${one.profiled_steps ?? one.steps}</td><td>${moment(one.requested_at)}</td>
      <td class="message">${one.state === "ready" ? html`<a href=${`/v1/jobs/${id}/profiles/${one.number}/content`} download>download</a>` : one.message ?? one.state}</td><td class="number">${one.size_bytes === null ? "" : bytes(one.size_bytes)}</td></tr>`)}</tbody></table></div>
    <p class="muted">Traces open in Perfetto and in <code>chrome://tracing</code>.</p></div>`;
}

function Outputs({ id, isLive }) {
  const found = useRead(`outputs ${id}`, () => get(`/v1/jobs/${id}/outputs?limit=200`), isLive ? 5 : 0);
  const items = found.value?.items ?? [];
  return html`<div class="card"><h2>Outputs</h2><${Problem} error=${found.error} />
    ${found.value && !items.length ? html`<p class="muted">The script has left no files in its outputs folder.</p>` : null}
    ${items.length ? html`<div class="scroll" tabindex="0" role="region" aria-label="outputs"><table><thead><tr><th>name</th><th class="number">size</th></tr></thead>
    <tbody>${items.map((one) => html`<tr key=${one.name}><td class="message"><a href=${`/v1/jobs/${id}/outputs/${one.name.split("/").map(encodeURIComponent).join("/")}`} download>${one.name}</a></td><td class="number">${bytes(one.size_bytes)}</td></tr>`)}</tbody></table></div>` : null}
    ${found.value?.next_cursor ? html`<p class="muted">The first 200; <code>remora outputs ${id}</code> lists all.</p>` : null}</div>`;
}

function Attempts({ id, isLive }) {
  const found = useRead(`attempts ${id}`, () => get(`/v1/jobs/${id}/attempts`), isLive ? 5 : 0);
  const items = found.value?.items ?? [];
  return html`<div class="card"><h2>Attempts</h2><${Problem} error=${found.error} />
    <div class="scroll" tabindex="0" role="region" aria-label="attempts"><table><thead><tr><th class="number">attempt</th><th>state</th><th>from step</th><th>began</th><th>took</th><th>end</th></tr></thead>
    <tbody>${items.map((one) => html`<tr key=${one.id}><td class="number">${one.attempt}</td><td><${State} state=${one.state} /></td><td>${one.resumed_from_step ?? "the beginning"}</td><td>${moment(one.created_at)}</td>
      <td>${one.ended_at ? duration(one.ended_at - one.created_at) : "–"}</td><td class="message">${one.end_reason ? `${phrase(one.end_reason)}: ` : ""}${one.message ?? ""}</td></tr>`)}</tbody></table></div></div>`;
}

function Specification({ job, other }) {
  const [isOpen, setOpen] = useState(false);
  const text = JSON.stringify(job.spec, null, 2), otherText = other ? JSON.stringify(other.spec, null, 2) : text;
  const lines = useMemo(() => (isOpen ? difference(otherText, text) : []), [isOpen, text, otherText]);
  return html`<details class="card" onToggle=${(event) => setOpen(event.currentTarget.open)}><summary>Specification${other ? `, and what differs from ${other.name}` : ""}</summary>
    <pre tabindex="0">${lines.map((line) => html`<span class="diff-${line.kind}">${{ more: "+ ", less: "- ", same: "  " }[line.kind]}${line.text}${"\n"}</span>`)}</pre></details>`;
}
