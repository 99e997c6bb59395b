// Parts that several views show.

import { html, useEffect, useState } from "./vendor/htm-preact-3.1.1.js";
import { addressOf } from "./addresses.js";
import { localTimes, phrase } from "./words.js";

export const State = ({ state, phase }) => html`<span class="state ${state}">${phrase(state)}${phase ? `: ${phase}` : ""}</span>`;

/** A sentence of the service, in which `names` stand between backticks, with times of the reader. */
export const Sentence = ({ text }) => html`${localTimes(text).split("`").map((part, index) => (index % 2 ? html`<code>${part}</code>` : part))}`;

/** What went wrong, in the words of the service, and what to do. */
export function Problem({ error }) {
  if (!error) return null;
  return html`<div class="problem" role="alert">${error.message} ${error.hint && html`<small>${error.hint}</small>`}</div>`;
}

/** A table that is moved sideways where the screen is narrow; `heads` are "time|#count|~words": numbers and long texts are marked. */
export function Table({ label, heads, rows }) {
  const columns = heads.split("|").map((head) => ({ name: head.replace(/^[#~]/, ""), kind: { "#": "number", "~": "message" }[head[0]] }));
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${label}><table><thead><tr>${columns.map((one) => html`<th class=${one.kind}>${one.name}</th>`)}</tr></thead>
    <tbody>${rows.map((cells) => html`<tr>${cells.map((cell, index) => html`<td class=${columns[index].kind}>${cell}</td>`)}</tr>`)}</tbody></table></div>`;
}

/** A card, with what went wrong when its content was read. */
export const Card = ({ title, note, label, error, children }) => html`<section class="card" aria-label=${label}><h2>${title}${note && html` <small>${note}</small>`}</h2><${Problem} error=${error} />${children}</section>`;

/** A card that makes its content, a function, once it is opened. */
export function Folded({ title, children }) {
  const [isOpen, setOpen] = useState(false);
  return html`<details class="card" onToggle=${(event) => setOpen(event.currentTarget.open)}><summary>${title}</summary>${isOpen && children()}</details>`;
}

/** The command that prints what is not `shown`. */
export const Rest = ({ shown, all, command }) => shown < all && html`<p class="muted">${shown} of ${all}; <code>remora ${command}</code> lists all.</p>`;

export const JobLink = ({ job, id = job.id }) => html`<a href=${addressOf(`jobs/${id}`)}>${job.name}</a>`;

/** A field whose text counts once it was left: what is drawn again meanwhile leaves alone what is being typed. */
export function Typed({ value, done, ...rest }) {
  const [draft, setDraft] = useState(null);
  return html`<input ...${rest} value=${draft ?? value} onInput=${(event) => setDraft(event.target.value)} onChange=${(event) => { done(event.target.value.trim()); setDraft(null); }} />`;
}

/** Lines of `difference`. */
export const Diff = ({ lines }) => html`<pre tabindex="0" aria-label="difference">${lines.map((line) => html`<span class="diff-${line.kind}">${{ more: "+ ", less: "- ", same: "  " }[line.kind]}${line.text}${"\n"}</span>`)}</pre>`;

export function Bar({ part, label }) {
  const percent = Math.round(100 * Math.min(1, Math.max(0, part)));
  return html`<div class="bar" role="progressbar" aria-label=${label} aria-valuemin="0" aria-valuemax="100" aria-valuenow=${percent}>
    <i style=${{ width: `${percent}%` }}></i></div>`;
}

/** The present time in seconds since 1970, again every `everyS` seconds: what uses it is drawn again then. */
export function useNow(everyS) {
  const [now, setNow] = useState(Date.now() / 1000);
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now() / 1000), everyS * 1000);
    return () => clearInterval(timer);
  }, [everyS]);
  return now;
}

/** A button for a request that writes; it asks again before what cannot be undone. */
export function Act({ children, question, act, first, danger }) {
  const [state, setState] = useState({ isBusy: false, error: null });
  const run = async () => {
    if (question && !confirm(question)) return;
    setState({ isBusy: true, error: null });
    try {
      await act();
      setState({ isBusy: false, error: null });
    } catch (error) {
      setState({ isBusy: false, error });
    }
  };
  return html`<span><button class=${first ? "first" : danger ? "danger" : ""} disabled=${state.isBusy} onClick=${run}>${children}</button>
    <${Problem} error=${state.error} /></span>`;
}

/** The number of workers over time, of which `most` are as high as `height`. */
export function WorkersArea({ workers, most = 1, x, to, bottom, height }) {
  if (!workers.length) return null;
  const top = Math.max(1, most, ...workers.map((one) => one.count));
  const path = workers.map((one, index) => `V${bottom - (one.count / top) * height} H${x(workers[index + 1]?.at ?? to)}`);
  return html`<path d="M${x(workers[0].at)},${bottom} ${path.join(" ")} V${bottom} Z" class="fill-spot" opacity=".4" />`;
}
