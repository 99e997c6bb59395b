// The view of one job.

import { html, useMemo, useState } from "./vendor/htm-preact-3.1.1.js";
import { get, getAll, getPages, request, useEntries, useRead } from "./api.js";
import { Act, Card, Diff, Folded, JobLink, Problem, Sentence, State, Table, useNow } from "./parts.js";
import { Steps } from "./jobs.js";
import { CHANGES, lifeLine, withStalls } from "./life_line.js";
import { WorkerLoads } from "./loads.js";
import { LifeLine } from "./life_line_view.js";
import { Metrics } from "./plots.js";
import { Logs } from "./logs.js";
import { addressOf, go } from "./addresses.js";
import { COUNT, asOf, bytes, cause, counted, difference, duration, lossText, moment, money, phrase, timeLeft } from "./words.js";

/** The newest events, of which the life line is drawn, and those before them that change it, with the seconds until these are
    read again, as newer ones move there. */
const MOST_EVENTS = 20_000, MOST_CHANGES = 1000, CHANGES_S = 300;
/** Pages of phases among which stalls are looked for, the newest, and other jobs that one waits for. */
const PHASE_PAGES = 5, MOST_OTHERS = 20;
/** Losses of which the cost is asked for, the newest. */
const MOST_LOSSES = 20;

export function JobView({ id, query }) {
  const found = useRead(`/v1/jobs/${id}`, () => get(`/v1/jobs/${id}`), 2);
  if (!found.value) return html`<${Problem} error=${found.error} />${found.error ? null : html`<p class="muted">Reading the job …</p>`}`;
  return html`<${Shown} job=${found.value} error=${found.error} reload=${found.reload} query=${query} />`;
}

function Shown({ job, error, reload, query }) {
  const others = (query.get("with") ?? "").split(",").filter(Boolean), id = job.id, isLive = !job.terminal;
  const compared = useRead(`with ${others}`, () => Promise.all(others.map((one) => get(`/v1/jobs/${one}`))), 0);
  // A line of thousands of events is made again when some come, and otherwise every few seconds.
  const now = useNow(isLive ? 5 : 3600);
  const { events, part, newest, error: eventsError } = useEvents(job), stalls = useStalls(job);
  const isCut = events[0]?.seq > 1, until = job.ended_at ?? now;
  const plain = useMemo(() => lifeLine(events, until), [events, until]), line = useMemo(() => withStalls(plain, stalls), [plain, stalls]);
  const losses = useLosses(job, line.losses), costs = useCosts(job);
  const act = (what) => async () => { await request("POST", `/v1/jobs/${id}/${what}`); await reload(); };
  const canPause = isLive && !job.pause_requested_at && job.state !== "paused";
  return html`
    <div class="title"><h1>${job.name}</h1><${State} state=${job.state} phase=${job.state === "running" ? line.job.at(-1)?.phase : ""} /><small>${id} · project ${job.project} · <code>${(job.spec.command ?? []).join(" ")}</code></small>
      <div class="end">${canPause && html`<${Act} act=${act("pause")}>Pause<//>`}
        ${job.pause_requested_at && isLive && html`<${Act} act=${act("resume")}>Resume<//>`}
        ${isLive && html`<${Act} danger question=${`Cancel ${job.name}?`} act=${act("cancel")}>Cancel<//>`}</div></div>
    <${Problem} error=${error ?? eventsError} />
    ${job.message && html`<div class="notice">${isLive && job.state !== "running" && html`<b>Why it waits: </b>`}<${Sentence} text=${job.message} /></div>`}
    ${job.reason === "waiting_for_jobs" && html`<${Others} ids=${(job.spec.after ?? []).map((one) => one.job)} />`}
    ${job.why_short && html`<div class="notice"><b>Why not more workers: </b><${Sentence} text=${job.why_short} /></div>`}
    <${Cards} job=${job} losses=${isCut ? [] : losses} ledger=${costs.value?.ledger} />
    ${part && html`<div class="notice">The page reads the newest ${counted(newest.length, "event")}${isCut ? `, and the newest ${COUNT.format(MOST_CHANGES)} changes before them: the picture begins on ${moment(line.from)}` : " and the changes before them"}. Checkpoints are drawn from ${moment(newest[0].at)} on. <code>remora events ${id}</code> prints all.</div>`}
    ${events.length > 0 && html`<${Life} job=${job} line=${line} losses=${losses} isCut=${isCut} />`}
    <${Events} events=${newest} part=${part} />
    <${Money} costs=${costs} />
    <${Metrics} job=${job} others=${compared.value ?? []} isLive=${isLive} />
    ${isLive && html`<${WorkerLoads} id=${id} />`}
    <${Logs} job=${job} />
    <${Files} job=${job} />
    <${Compare} id=${id} query=${query} others=${compared.value ?? []} error=${compared.error} />
    <${Specification} job=${job} other=${compared.value?.[0]} />`;
}

/** `{events, part, newest, error}`: the newest events, and before them, where those are but a `part`, those that change the line. */
function useEvents(job) {
  const path = `/v1/jobs/${job.id}/events`;
  const { entries, error } = useEntries(job, path, "event", MOST_EVENTS, () => getPages(`${path}?limit=1000&tail=${MOST_EVENTS}`, Infinity));
  const newest = useMemo(() => entries.slice(-MOST_EVENTS), [entries]), first = newest[0]?.seq ?? 1;
  const part = first > 1;
  const before = useRead(`${path} ${part}`, async () => (part ? (await get(`${path}?kind=${CHANGES}&limit=1000&tail=${MOST_CHANGES}`)).items : []), part && !job.terminal ? CHANGES_S : 0);
  const isRead = !part || before.value || before.error;
  const events = useMemo(() => (isRead ? [...(before.value ?? []).filter((one) => one.seq < first), ...newest] : []), [before.value, newest, isRead]);
  return { events, part, newest, error: error ?? before.error };
}

/** When its training loop waited for checkpoints, as the ledger counts it. */
function useStalls(job) {
  const path = `/v1/jobs/${job.id}/phases?limit=1000`;
  const found = useRead(`${path} ${job.terminal}`, () => getPages(path, PHASE_PAGES), job.terminal ? 0 : 10).value;
  return useMemo(() => (found?.items ?? []).filter((one) => one.phase === "checkpoint").map((one) => ({ from: one.began_at, to: one.ended_at ?? one.began_at })).reverse(), [found]);
}

/** What is known of the others that a job waits for, and when it may start as far as that says it. */
function Others({ ids }) {
  const now = useNow(5), found = useRead(`after ${ids}`, () => Promise.all(ids.slice(0, MOST_OTHERS).map((one) => get(`/v1/jobs/${one}`).catch(() => null))), 5);
  const all = found.value ?? [], others = all.filter((one) => one && !one.terminal), known = others.map((one) => timeLeft(one, now) || NaN);
  if (!others.length) return null;
  const last = all.includes(null) || ids.length > all.length ? NaN : Math.max(...known);
  return html`<div class="notice">${last > 0 ? `It may start in about ${duration(last)}, if these keep their mean paces:` : "When it may start is not known, as these do not say how long they take:"}
    ${others.map((one, index) => html`<div><${JobLink} job=${one} /> <${State} state=${one.state} /> ${known[index] > 0 ? `${duration(known[index])} left` : "not known"}</div>`)}</div>`;
}

/** Losses with the `cost` of each of the newest, in USD: all that the job was paid for until its first new step. */
function useLosses(job, losses) {
  const newest = losses.slice(-MOST_LOSSES), last = newest.at(-1);
  // What a loss that is over has cost does not change.
  const found = useRead(`losses ${job.id} ${losses.length} ${last?.isOver && last.to}`, () => unlessHidden([], () => Promise.all(newest.map(async (one) => {
    const report = await get(`/v1/costs?by=cause&job=${job.id}&since=${one.from}&until=${Math.max(one.to, one.from + 0.001)}`);
    return [one.at, report.cost];
  }))), job.terminal || !last || last.isOver ? 0 : 15);
  const costs = new Map(found.value ?? []);
  return losses.map((one) => ({ ...one, cost: costs.get(one.at) }));
}

/** What a reader may not see is `otherwise`. */
async function unlessHidden(otherwise, read) {
  try {
    return await read();
  } catch (error) {
    if (error.status === 403) return otherwise;
    throw error;
  }
}

function Cards({ job, losses, ledger }) {
  const now = useNow(1);
  const left = timeLeft(job, now);
  const sizes = job.spec.workers ?? {};
  const sum = { ...Object.fromEntries(["total_s", "noticed_s", "regrouping_s", "recomputing_s", "cost"].map((name) => [name, losses.reduce((total, one) => total + one[name], 0)])), steps: job.repeated_steps, isOver: losses.every((one) => one.isOver) };
  if (Number.isNaN(sum.cost)) sum.cost = undefined;
  const card = (name, value, note) => html`<div class="card"><small>${name}</small><b>${value}</b><small>${note}</small></div>`;
  return html`<div class="cards">
    <div class="card"><small>Step</small><b><${Steps} job=${{ ...job, state: "" }} now=${now} /></b></div>
    ${card("Time left", left === null ? "–" : Number.isNaN(left) ? "too early to say" : duration(left), "at the mean pace since it started, losses included")}
    ${card("Workers", job.world_size, sizes.max === undefined ? "" : `of ${sizes.min ?? 1} to ${sizes.max}`)}
    ${ledger ? card("Cost", money(ledger.cost + ledger.start_up_cost), `for ${duration(ledger.node_s + ledger.start_up_s)} of nodes, also while they started, ${asOf(ledger.at)}${ledger.budget === null ? "" : `; ${money(ledger.cost)} of its budget of ${money(ledger.budget)}`}`) : null}
    ${losses.length ? card("Lost to failures", duration(sum.total_s), `in ${counted(losses.length, "loss")}: ${lossText(sum)}`) : card("Lost to failures", duration(job.lost_s), `${counted(job.repeated_steps, "step")} repeated`)}
    ${card("Since it started", job.started_at ? duration((job.ended_at ?? now) - job.started_at) : "–", job.started_at ? `on ${moment(job.started_at)}` : "")}
  </div>`;
}

function Life({ job, line, losses, isCut }) {
  const listed = useRead("nodes", () => getAll("/v1/nodes?limit=1000", 2), job.terminal ? 0 : 15);
  const nodes = useMemo(() => byAddress(listed.value ?? []), [listed.value]);
  return html`<${LifeLine} line=${line} job=${job} nodes=${nodes} losses=${losses} isCut=${isCut} />`;
}

const Events = ({ events, part }) => html`<${Folded} title=${`${part ? "The newest" : "All"} ${counted(events.length, "event")}`}>${() => html`<${Table} label="events" heads="time|event|~message" rows=${events.slice(-500).reverse().map((event) => [moment(event.at), event.kind, event.message])} />
    ${events.length > 500 && html`<p class="muted">The newest 500 of them are shown; <code>remora events</code> prints all.</p>`}`}<//>`;

/** Nodes by their addresses, each of which may have been another machine's before. */
function byAddress(nodes) {
  const found = new Map();
  for (const node of nodes) if (node.address) found.set(node.address, [...(found.get(node.address) ?? []), node]);
  return found;
}

/** `{ledger, lines, goodput}`: by kind of node and by cause, for those who may see it; a job older than 31 days shows its last 31. */
function useCosts(job) {
  const until = job.ended_at ? job.ended_at + 3600 : Date.now() / 1000;
  const since = Math.max(job.created_at - 3600, until - 31 * 86400 + 60);
  const times = `job=${job.id}&since=${since}&until=${until}`;
  return useRead(`costs ${job.id} ${job.terminal}`, async () => {
    const [ledger, costs, goodput] = await Promise.all([get(`/v1/jobs/${job.id}/ledger`),
      ...[`/v1/costs?by=cause&limit=100&${times}`, `/v1/goodput?${times}`].map((path) => unlessHidden(null, () => get(path)))]);
    return { ledger, lines: costs?.lines ?? [], goodput };
  }, job.terminal ? 0 : 10);
}

function Money({ costs }) {
  const { ledger, lines = [], goodput } = costs.value ?? {};
  return html`<${Card} title="Costs" note=${asOf(costs.at)} error=${costs.error}>
    ${ledger && html`<p><b>${money(ledger.cost)}</b> for ${duration(ledger.node_s)} of nodes that its workers held${ledger.start_up_s ? `, and ${money(ledger.start_up_cost)} while machines started for it` : ""}${ledger.budget === null ? "" : `; its budget of ${money(ledger.budget)} counts what they held`}.</p>`}
    ${ledger?.lines.length > 0 && html`<${Table} label="costs by kind of node" heads="pool|size|capacity|#nodes|#time|#cost"
      rows=${ledger.lines.map((line) => [line.pool, line.size, line.capacity ?? "–", line.nodes, duration(line.node_s), money(line.cost)])} />`}
    <${Causes} lines=${lines} goodput=${goodput} /><//>`;
}

function Causes({ lines, goodput }) {
  const sum = lines.reduce((total, line) => total + line.node_s, 0);
  if (!sum) return null;
  const said = (line) => `${cause(line.of.cause)} ${duration(line.node_s)}, ${money(line.cost)}`;
  return html`<h2>Where the paid time went <small>node time: seconds of all its nodes together, also while they started</small></h2>
    <div class="share">${lines.map((line) => html`<i class="cause-${line.of.cause}" style=${{ width: `${(100 * line.node_s) / sum}%` }} title=${said(line)}></i>`)}</div>
    <div class="legend">${[...lines].sort((one, other) => other.node_s - one.node_s).map((line) => html`<span><i class="cause-${line.of.cause}"></i>${said(line)}</span>`)}</div>
    ${goodput && html`<p><${Sentence} text=${goodput.sentence} /></p>`}`;
}

function Compare({ id, query, others, error }) {
  const [text, setText] = useState("");
  const set = (ids) => go(`jobs/${id}`, { ...Object.fromEntries(query), with: ids.join(",") });
  const add = (event) => {
    event.preventDefault();
    if (text.trim()) set([...new Set([...others.map((job) => job.id), text.trim()])].slice(0, 6));
    setText("");
  };
  return html`<details class="card" open=${others.length > 0}><summary>Compare with other jobs</summary><${Problem} error=${error} />
    <form onSubmit=${add} class="filters"><label>id of a job<input value=${text} onInput=${(event) => setText(event.target.value)} placeholder="job_..." /></label><button>Add</button></form>
    ${others.map((job) => html`<p><${JobLink} job=${job} /> <${State} state=${job.state} /> <button aria-label=${`remove ${job.name}`} onClick=${() => set(others.filter((one) => one !== job).map((one) => one.id))}>remove</button></p>`)}
    <p class="muted">Its metrics are laid over those of this job, and the specification below shows what differs from the first one.</p></details>`;
}

/** A card with what the job has of something, which is read again while it lives; nothing where there is none. */
function Listed({ title, job, path, heads, row, note }) {
  const found = useRead(path, () => get(`/v1/jobs/${job.id}/${path}`), job.terminal ? 0 : 5);
  const items = found.value?.items ?? [];
  if (!items.length) return html`<${Problem} error=${found.error} />`;
  return html`<${Card} title=${title} error=${found.error}>
    <${Table} label=${title.toLowerCase()} heads=${heads} rows=${items.map(row)} />${note?.(found.value)}<//>`;
}

const download = (path, name = "download") => html`<a href=${`/v1/jobs/${path}`} download>${name}</a>`;

function Files({ job }) {
  const id = job.id;
  return html`<${Listed} title="Checkpoints" job=${job} path="checkpoints" heads="#step|#workers|#size|committed|"
      row=${(one) => [COUNT.format(one.step), one.world_size, bytes(one.size_bytes), moment(one.committed_at), download(`${id}/checkpoints/${one.step}/content`, "download (tar)")]} />
    <${Listed} title="Outputs" job=${job} path="outputs?limit=200" heads="~download|#size"
      row=${(one) => [download(`${id}/outputs/${one.name.split("/").map(encodeURIComponent).join("/")}`, one.name), bytes(one.size_bytes)]}
      note=${(page) => page.next_cursor && html`<p class="muted">The first 200; <code>remora outputs ${id}</code> lists all.</p>`} />
    <${Listed} title="Profiles" job=${job} path="profiles" heads="#rank|#steps|asked for|~state|#size"
      row=${(one) => [one.rank, one.profiled_steps ?? one.steps, moment(one.requested_at),
        one.state === "ready" ? html`<a href=${addressOf(`jobs/${id}/profiles/${one.number}`)}>open</a> ${download(`${id}/profiles/${one.number}/content`)}` : one.message ?? one.state, one.size_bytes === null ? "" : bytes(one.size_bytes)]}
      note=${() => html`<p class="muted">Traces that were downloaded open in Perfetto and in <code>chrome://tracing</code> too.</p>`} />
    <${Listed} title="Attempts" job=${job} path="attempts" heads="#attempt|state|from step|began|took|~end"
      row=${(one) => [one.attempt, html`<${State} state=${one.state} />`, one.resumed_from_step ?? "the beginning", moment(one.created_at),
        one.ended_at ? duration(one.ended_at - one.created_at) : "–", `${one.end_reason ? `${phrase(one.end_reason)}: ` : ""}${one.message ?? ""}`]} />`;
}

const Difference = ({ before, after }) => html`<${Diff} lines=${useMemo(() => difference(before, after), [before, after])} />`;

function Specification({ job, other }) {
  const [text, otherText] = [job, other ?? job].map((one) => JSON.stringify(one.spec, null, 2));
  return html`<${Folded} title=${`Specification${other ? `, and what differs from ${other.name}` : ""}`}>${() => html`<${Difference} before=${otherText} after=${text} />`}<//>`;
}
