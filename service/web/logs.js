// What the workers printed: the newest lines, with the ones that follow, a rank alone, and lines that contain a text.

import { html, useEffect, useRef, useState } from "./vendor/htm-preact-3.1.1.js";
import { get, useRead, useStream } from "./api.js";
import { Problem } from "./parts.js";
import { clock, counted } from "./words.js";

/** Lines in the page: whatever a job prints, older ones are left to `remora logs`. */
const MOST_LINES = 1000;
/** Milliseconds without a key after which the service is asked for lines with a text. */
const TYPED_MS = 300;

export function Logs({ job }) {
  const [rank, setRank] = useState(""), [text, setText] = useState(""), [follows, setFollows] = useState(true);
  const [contains, setContains] = useState("");
  const box = useRef(null);
  useEffect(() => {
    const timer = setTimeout(() => setContains(text), TYPED_MS);
    return () => clearTimeout(timer);
  }, [text]);
  const filters = { ...(rank === "" ? {} : { rank }), ...(contains ? { contains } : {}) };
  const query = new URLSearchParams({ tail: MOST_LINES, limit: MOST_LINES, ...filters });
  const path = `/v1/jobs/${job.id}/logs?${query}`;
  const before = useRead(path, () => get(path), 0);
  const last = before.value?.items.at(-1)?.seq ?? 0;
  const stream = `/v1/jobs/${job.id}/logs?${new URLSearchParams({ tail: MOST_LINES, ...filters })}`;
  const later = useStream(before.value && !job.terminal ? stream : null, last, "log", MOST_LINES);
  useEffect(() => { if (job.terminal && before.value) before.reload(); }, [job.terminal]);
  const lines = [...(before.value?.items ?? []), ...later.filter((line) => line.seq > last)].slice(-MOST_LINES);
  const lower = contains.toLowerCase();
  useEffect(() => { if (follows && box.current) box.current.scrollTop = box.current.scrollHeight; }, [lines.length, lines.at(-1)?.seq, follows]);
  return html`<div class="card"><div class="title"><h2>Logs</h2><div class="end filters">
      <label>rank<input type="number" min="0" value=${rank} onChange=${(event) => setRank(event.target.value)} style=${{ width: "80px" }} /></label>
      <label>contains<input type="search" maxlength="200" value=${text} onInput=${(event) => setText(event.target.value)} /></label>
      <button aria-pressed=${follows} onClick=${() => setFollows(!follows)}>${follows ? "Following" : "Follow"}</button></div></div>
    <${Problem} error=${before.error} />
    <div class="log" ref=${box} tabindex="0" role="log" aria-label="log lines">${lines.map((line) => html`<div key=${line.seq} class=${line.stream}><span class="muted">${clock(line.at)} rank ${line.rank} </span><${Marked} text=${line.text} part=${lower} /></div>`)}
      ${before.value && !lines.length ? html`<span class="muted">${contains || rank !== "" ? "No such line was printed yet." : "Nothing was printed yet."}</span>` : null}</div>
    <p class="muted">The newest ${counted(lines.length, "line")}${contains ? ` with ${JSON.stringify(contains)}` : ""}; <code>remora logs ${job.id}</code> prints all.</p></div>`;
}

function Marked({ text, part }) {
  const at = part ? text.toLowerCase().indexOf(part) : -1;
  if (at < 0) return text;
  return html`${text.slice(0, at)}<mark>${text.slice(at, at + part.length)}</mark>${text.slice(at + part.length)}`;
}
