// The view of the policies.

import { html, useEffect, useState } from "./vendor/htm-preact-3.1.1.js";
import { ApiError, get, getAll, getLong, request, useRead } from "./api.js";
import { Act, Bar, Diff, Problem, Sentence, Table } from "./parts.js";
import { COUNT, counted, difference, duration, isKnown, moment, money, percent, phrase } from "./words.js";

export function Policies() {
  const newest = useRead("policies", () => get("/v1/policies/newest"), 0);
  const versions = useRead("versions", () => getAll("/v1/policies?limit=100", 3), 0);
  const [text, setText] = useState(null), [comment, setComment] = useState("");
  const [check, setCheck] = useState(null);
  const applied = newest.value?.document ?? "", document = text ?? applied, isChanged = document !== applied;
  useEffect(() => {
    if (!isChanged) { setCheck(null); return undefined; }
    let isOver = false;
    // A check for each pause in typing, and not for each key.
    const timer = setTimeout(async () => {
      try {
        const found = await request("POST", "/v1/policies/check", { document });
        if (!isOver) setCheck({ found });
      } catch (error) { if (!isOver) setCheck({ error }); }
    }, 400);
    return () => { isOver = true; clearTimeout(timer); };
  }, [document, isChanged]);
  const reload = async () => { setText(null); setComment(""); await newest.reload(); await versions.reload(); };
  const apply = async () => { await request("POST", "/v1/policies", { document, based_on: newest.value.version, comment }); await reload(); };
  const restore = (version) => async () => { await request("POST", "/v1/policies", { restores: version, based_on: newest.value.version, comment: `Back to version ${version}.` }); await reload(); };
  const problems = check?.found?.problems ?? [];
  const isGood = isChanged && check?.found && !problems.length;
  const lines = isChanged ? difference(applied, document) : [], changed = lines.filter(isOther).length;
  return html`<div class="title"><h1>Policies</h1>${newest.value && html`<small>version ${newest.value.version}${newest.value.created_at ? `, applied on ${moment(newest.value.created_at)}` : ", made from the settings, with which the service began"}</small>`}</div>
    <${Problem} error=${newest.error} />
    <div class="two"><div class="card"><h2 id="editor">1. Edit</h2>
      <textarea aria-labelledby="editor" spellcheck="false" value=${document} onInput=${(event) => setText(event.target.value)}></textarea>
      <button disabled=${!isChanged} onClick=${() => setText(null)}>Discard the changes</button></div>
    <div class="card"><h2>2. Check</h2>
      <${Problem} error=${check?.error} />
      ${problems.map((problem) => html`<div class="problem"><${Sentence} text=${problemText(problem)} /></div>`)}
      ${isGood && html`<div class="notice">Valid; ${counted(changed, "line")} changed; ${check.found.is_in_force ? "in effect already" : "not applied yet"}.</div>`}
      ${(check?.found?.notes ?? []).map((note) => html`<div class="notice"><${Sentence} text=${note} /></div>`)}
      ${isChanged ? html`<${Diff} lines=${lines.filter((_, index) => lines.slice(Math.max(0, index - 2), index + 3).some(isOther))} />` : html`<p class="muted">Change the document: it is checked while you type, and the difference is shown here.</p>`}</div></div>
    <${WhatIf} document=${document} applied=${applied} isChanged=${isChanged && !problems.length} />
    <div class="card"><h2>4. Apply</h2><p class="muted">From the next tick on, these policies decide what is bought, kept and given back. Running jobs go on; nodes above a maximum or of a removed pool are drained, so that their jobs continue elsewhere.</p><div class="filters"><label>comment<input value=${comment} onInput=${(event) => setComment(event.target.value)} /></label>
      ${isGood ? html`<${Act} first act=${apply} question=${`Apply these policies, with ${counted(changed, "changed line")}?`}>Apply<//>` : html`<button disabled>Apply</button>`}</div></div>
    <div class="card"><h2>History</h2><${Table} label="versions of the policies" heads="#version|applied|by|~comment|"
      rows=${(versions.value ?? []).map((one) => [one.version, one.created_at ? moment(one.created_at) : "when the service began", one.author, `${one.comment}${isKnown(one.restores) ? ` (restores ${one.restores})` : ""}`,
        one.version === newest.value?.version ? "in effect" : html`<${Act} key=${one.version} question=${`Apply the document of version ${one.version} again?`} act=${restore(one.version)}>Restore<//>`])} /></div>`;
}

const problemText = (problem) => (typeof problem === "string" ? problem : [problem.lines?.length ? `${problem.lines.length > 1 ? "lines" : "line"} ${problem.lines.join(", ")}` : "", problem.field, problem.message].filter(Boolean).join(": "));

const isOther = (line) => line.kind !== "same";

function WhatIf({ document, applied, isChanged }) {
  const [days, setDays] = useState(7), [files, setFiles] = useState(null), [plan, setPlan] = useState(null);
  const run = async () => {
    setPlan(null);
    const traces = await Promise.all(files ? files.map(async (file) => ({ name: file.name, text: await file.text() })) : [recorded(days)]);
    const policies = [{ name: "in effect", text: applied }, ...(isChanged ? [{ name: "edited", text: document }] : [])];
    let found = await request("POST", "/v1/plans", { traces, policies });
    setPlan(found);
    while (!found.terminal) {
      found = await get(`/v1/plans/${found.id}?wait_s=10`);
      setPlan(found);
    }
  };
  return html`<div class="card"><h2>3. Replay: what if</h2><p class="muted">Replays the jobs of a trace under the policies in effect${isChanged ? " and those of the editor" : "; change the document to compare"}.</p>
    <div class="filters"><label>trace<select onChange=${(event) => setFiles(event.target.value ? [] : null)}><option value="">the last days of this cluster</option><option value="files">files</option></select></label>
      ${files ? html`<label>traces, as for <code>remora plan</code><input type="file" multiple onChange=${(event) => setFiles([...event.target.files])} /></label>`
      : html`<label>days of history<input type="number" min="1" max="31" value=${days} onInput=${(event) => setDays(Number(event.target.value))} style=${{ width: "90px" }} /></label>`}
      ${files?.length === 0 ? html`<button disabled>Replay</button>` : html`<${Act} act=${run}>Replay<//>`}</div>
    ${plan && html`<${Plan} plan=${plan} />`}</div>`;
}

async function recorded(days) {
  const trace = await getLong(`/v1/trace?since=${Math.max(0, Date.now() / 1000 - days * 86400)}`);
  if (!trace.jobs) throw new ApiError(0, "", "No job trained in that time, so there is nothing to replay.", "");
  return { name: "history.jsonl", text: trace.text };
}

const part = (value) => percent(value, 1), count = (value) => COUNT.format(value);
/** Names, keys and words of what a replay found; the first ones are plotted. */
const FIGURES = [
  ["cost", "cost_usd", money], ["median wait", "wait_p50_s", duration], ["wait of 95 %", "wait_p95_s", duration], ["goodput", "goodput", part], ["deadlines missed", "deadlines_missed", count],
  ["of the cost spot", "spot_usd", money], ["jobs that succeeded", "succeeded", count], ["jobs that failed", "failed", count], ["median time to completion", "completion_p50_s", duration],
  ["capacity in use", "used", part], ["preemptions", "preemptions", count], ["budgets exceeded", "exceeded", count],
];
const PLOTTED = 5;

function Figure({ name, of, said, reports }) {
  const most = Math.max(...reports.map((one) => one[of]));
  return html`<div class="card"><b>${name}</b>${reports.map((one) => html`<div>${one.policy}: ${said(one[of])}<${Bar} part=${most ? one[of] / most : 0} label=${`${name}, ${one.policy}`} /></div>`)}</div>`;
}

function Plan({ plan }) {
  const reports = plan.reports.map((one) => ({ ...one, exceeded: one.budget_violations + one.project_budget_violations }));
  return html`<p role="status">${plan.terminal ? phrase(plan.state) : `${Math.round(100 * plan.progress)} % of the replay of ${COUNT.format(plan.jobs)} jobs`}${plan.message ? `: ${plan.message}` : ""}</p>
    ${reports.length > 0 && html`<div class="cards">${FIGURES.slice(0, PLOTTED).map(([name, of, said]) => html`<${Figure} name=${name} of=${of} said=${said} reports=${reports} />`)}</div>
      <${Table} label="result of the replay" heads=${["", ...reports.map((one) => `#${one.policy}`)].join("|")} rows=${FIGURES.map(([name, of, said]) => [name, ...reports.map((one) => said(one[of]))])} />`}
    ${plan.plot && html`<img alt="nodes and waiting jobs over time under each policy" style=${{ maxWidth: "100%", background: "#fff" }} src=${`data:image/svg+xml;charset=utf-8,${encodeURIComponent(plan.plot)}`} />`}
    ${plan.notes.map((note) => html`<p class="muted">${note}</p>`)}`;
}
