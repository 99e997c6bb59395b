// Submitting a job from a file: first what the service would say to it, then the job itself.

import { html, useState } from "./vendor/htm-preact-3.1.1.js";
import { ApiError, request } from "./api.js";
import { Act, JobLink, Problem } from "./parts.js";

/** The service reads the text, as the command line reads a file. */
const YAML = { "Content-Type": "application/yaml" };
/** Bytes of a file that the API takes. */
const MOST_BYTES = 256 * 1024;
async function textOf(file) {
  if (file.size > MOST_BYTES) throw new ApiError(0, "", `${file.name} is larger than 256 KiB.`, "A specification is a short text; code is submitted by the command line.");
  return file.text();
}

const newKey = () => [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");

export function Submission({ submitted, children }) {
  const [state, setState] = useState({}), [isOver, setOver] = useState(false);
  const look = async (file) => {
    if (!file) return;
    setState({ isBusy: true });
    try {
      const text = await textOf(file);
      setState({ name: file.name, text, key: newKey(), found: await request("POST", "/v1/jobs?dry_run=true", text, YAML) });
    } catch (error) { setState({ error }); }
  };
  // One key for one file: however often the button is pressed, there is one job.
  const submit = async () => {
    const job = await request("POST", "/v1/jobs", state.text, { ...YAML, "Idempotency-Key": state.key });
    setState({ job });
    await submitted();
  };
  const drop = (event) => { event.preventDefault(); setOver(false); look(event.dataTransfer.files[0]); };
  const { found, error, job } = state;
  return html`<div class=${isOver ? "dropping" : ""} onDragOver=${(event) => { event.preventDefault(); setOver(true); }} onDragLeave=${() => setOver(false)} onDrop=${drop}>
    <div class="card filters"><label>Submit a job: drop its YAML here, or choose it<input type="file" accept=".yaml,.yml,.json" onChange=${(event) => { look(event.target.files[0]); event.target.value = ""; }} /></label>
      <${Problem} error=${error} />
      ${found && html`<div><p>${state.name}: <b>${found.spec.name}</b> for project ${found.project}</p>
        ${found.problems.map((one) => html`<div class="problem">${one.field ? `${one.field}: ` : ""}${one.message}</div>`)}
        ${found.never && html`<div class="notice">It would wait for ever: ${found.never}</div>`}
        ${found.problems.length ? null : html`<${Act} first act=${submit}>Submit<//>`}
        <button onClick=${() => setState({})}>Discard</button></div>`}
      ${job && html`<div class="notice">Submitted <${JobLink} job=${job} />.</div>`}</div>
    ${children}</div>`;
}
