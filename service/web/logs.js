// What the workers printed.

import { html, useEffect, useRef, useState } from "./vendor/htm-preact-3.1.1.js";
import { get, useEntries } from "./api.js";
import { Problem } from "./parts.js";
import { clock, counted } from "./words.js";

const MOST_LINES = 1000;
/** Milliseconds without a key after which the service is asked for lines with a text. */
const TYPED_MS = 300;

export function Logs({ job }) {
  const [typedRank, setRank] = useState(""), [text, setText] = useState(""), [follows, setFollows] = useState(true);
  const [{ rank, contains }, setWanted] = useState({ rank: "", contains: "" });
  const box = useRef(null);
  useEffect(() => {
    const timer = setTimeout(() => setWanted({ rank: typedRank, contains: text }), TYPED_MS);
    return () => clearTimeout(timer);
  }, [typedRank, text]);
  const filters = new URLSearchParams({ tail: MOST_LINES, ...(rank === "" ? {} : { rank }), ...(contains ? { contains } : {}) });
  const path = `/v1/jobs/${job.id}/logs?${filters}`;
  const { page, entries, error } = useEntries(job, path, "log", MOST_LINES, () => get(`${path}&limit=${MOST_LINES}`));
  const lines = entries.slice(-MOST_LINES);
  const lower = contains.toLowerCase();
  useEffect(() => { if (follows && box.current) box.current.scrollTop = box.current.scrollHeight; }, [lines.length, lines.at(-1)?.seq, follows]);
  return html`<div class="card"><div class="title"><h2>Logs</h2><div class="end filters">
      <label>rank<input type="number" min="0" value=${typedRank} onInput=${(event) => setRank(event.target.value)} style=${{ width: "80px" }} /></label>
      <label>contains<input type="search" maxlength="200" value=${text} onInput=${(event) => setText(event.target.value)} /></label>
      <button aria-pressed=${follows} onClick=${() => setFollows(!follows)}>${follows ? "Following" : "Follow"}</button></div></div>
    <${Problem} error=${error} />
    <div class="log" ref=${box} tabindex="0" role="log" aria-label="log lines">${lines.map((line) => html`<div key=${line.seq} class=${line.stream}><small>${clock(line.at)} rank ${line.rank} </small><${Marked} text=${line.text} part=${lower} /></div>`)}
      ${page && !lines.length && html`<small>${contains || rank !== "" ? "There is no such line among the newest 1,000,000." : "Nothing was printed yet."}</small>`}</div>
    <p class="muted">The newest ${counted(lines.length, "line")}${contains ? ` with ${JSON.stringify(contains)}` : ""}; <code>remora logs ${job.id}</code> prints all.</p></div>`;
}

function Marked({ text, part }) {
  const at = part ? text.toLowerCase().indexOf(part) : -1;
  if (at < 0) return text;
  return html`${text.slice(0, at)}<mark>${text.slice(at, at + part.length)}</mark>${text.slice(at + part.length)}`;
}
