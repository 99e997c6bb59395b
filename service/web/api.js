// Requests to the API of the service, and values that are read again while the page is visible.

import { useCallback, useEffect, useMemo, useRef, useState } from "./vendor/htm-preact-3.1.1.js";

// What writes need beside the cookie of a session; null: the service asks for no token.
let csrfToken = null;

/** Milliseconds in which a request is answered: a connection that is gone may never say so. */
const READ_MS = 20_000, LONG_MS = 120_000;
/** Seconds until what was not read is asked for again, where nothing else asks for it. */
const AGAIN_S = 3;
/** The event of the window for an answer that says that the reader is signed in no more. */
export const SIGNED_OUT = "remora-signed-out";
/** Answers of these say so themselves. */
const OF_SIGNING_IN = ["/v1/whoami", "/v1/session", "/v1/sign-in"];

/** An answer that is an error, with its stable `code`, and what to do as `hint`. */
export class ApiError extends Error {
  constructor(status, code, detail, hint) {
    super(detail);
    Object.assign(this, { status, code, hint });
  }

  /** The same request may be answered later. */
  get isPassing() { return this.status === 0 || this.status === 429 || this.status >= 500; }
}

/** The JSON of an answer, if it has any, or what `read` makes of the answer.  `body` is sent as JSON, a text as it is.  Throws
    ApiError, also without an answer. */
export async function request(method, path, body, headers = {}, withinMs = method === "GET" ? READ_MS : LONG_MS, read = null) {
  const isText = typeof body === "string";
  const sent = { Accept: "application/json", ...(body === undefined || isText ? {} : { "Content-Type": "application/json" }), ...headers };
  if (method !== "GET" && csrfToken) sent["X-CSRF-Token"] = csrfToken;
  const signal = AbortSignal.timeout(withinMs);
  let answer, text;
  try {
    answer = await fetch(path, { method, headers: sent, body: body === undefined || isText ? body : JSON.stringify(body), signal });
    if (answer.ok && read) return await read(answer);
    text = await answer.text();
  } catch {
    throw new ApiError(0, "unreachable", "The service does not answer.",
      method === "GET" ? "The page asks again." : "It may have done what was asked: look before you try again.");
  }
  if (answer.status === 401 && !OF_SIGNING_IN.includes(path)) dispatchEvent(new Event(SIGNED_OUT));
  let document = null;
  try { document = text ? JSON.parse(text) : null; } catch { document = null; }
  if (answer.ok) return document;
  const problem = document ?? {};
  throw new ApiError(answer.status, problem.code ?? "", problem.detail ?? `The service answered ${answer.status}.`,
    [problem.hint, ...(problem.errors ?? []).map((one) => `${one.field}: ${one.message}`)].filter(Boolean).join("; "));
}

export const get = (path) => request("GET", path);

/** What the service computes for long. */
export const getLong = (path) => request("GET", path, undefined, {}, LONG_MS);

/** What `read` makes of a long answer that is no JSON. */
export const getRead = (path, read) => request("GET", path, undefined, {}, LONG_MS, read);

const withParameter = (path, name, value) => `${path}${path.includes("?") ? "&" : "?"}${name}=${encodeURIComponent(value)}`;

/** A list as one page with the entries of at most `pages` pages, which are those `of` this name. */
export async function getPages(path, pages, of = "items", read = get) {
  const entries = [];
  let page = {};
  do {
    page = await read(page.next_cursor ? withParameter(path, "cursor", page.next_cursor) : path);
    entries.push(...page[of]);
  } while (page.next_cursor && --pages > 0);
  return { ...page, [of]: entries };
}

export const getAll = async (path, pages = 20) => (await getPages(path, pages)).items;

/** Who the reader is: `{principal, isRequired, issuers}`; principal is null where a token is needed and there is none, and
    `issuers` are names of those at whose pages people sign in. */
export async function readIdentity() {
  const ways = await get("/v1/sign-in"), issuers = ways.issuers.filter((one) => one.pages).map((one) => one.name);
  try {
    const principal = await get("/v1/whoami");
    csrfToken = ways.is_required ? (await get("/v1/session")).csrf_token : null;
    return { principal, isRequired: ways.is_required, issuers };
  } catch (error) {
    if (error.status !== 401 && error.code !== "session_not_found") throw error;
    return { principal: null, isRequired: true, issuers };
  }
}

export async function signIn(token) {
  const session = await request("POST", "/v1/session", undefined, { Authorization: `Bearer ${token}` });
  csrfToken = session.csrf_token;
}

export async function signOut() {
  await request("DELETE", "/v1/session");
  csrfToken = null;
}

/** `{value, at, error, reload}` of what `read` returns, read again every `everyS` seconds while the page is visible.
    `key` names what is read: another one forgets the value.  The last value stays when a later request fails, `at` is when
    it was read, in seconds since 1970.  What is read once (0) is asked for again where it did not arrive. */
export function useRead(key, read, everyS) {
  const [found, setFound] = useState({ key: null, value: undefined, at: null, error: null });
  const newest = useRef(read), asked = useRef(key);
  newest.current = read;
  asked.current = key;
  const load = useCallback(async () => {
    // An answer that comes after something else was asked for is not shown.
    const show = (next) => { if (asked.current === key) setFound(next); };
    try {
      const value = await newest.current();
      show({ key, value, at: Date.now() / 1000, error: null });
      return null;
    } catch (error) {
      show((before) => ({ ...(before.key === key ? before : { value: undefined, at: null }), key, error }));
      return error;
    }
  }, [key]);
  useEffect(() => {
    let timer, isOver = false;
    const again = async () => {
      clearTimeout(timer);
      const error = document.visibilityState === "visible" ? await load() : null;
      const nextS = everyS || (error?.isPassing ? AGAIN_S : 0);
      if (!isOver && nextS) timer = setTimeout(again, nextS * 1000);
    };
    const shown = () => document.visibilityState === "visible" && again();
    again();
    document.addEventListener("visibilitychange", shown);
    return () => { isOver = true; clearTimeout(timer); document.removeEventListener("visibilitychange", shown); };
  }, [load, everyS]);
  const isOfKey = found.key === key;
  return { value: isOfKey ? found.value : undefined, at: isOfKey ? found.at : null, error: isOfKey ? found.error : null, reload: load };
}

/** All entries of a stream of server-sent events so far: `path` with the entries above `after`, as `kind`s.
 *
 * `most`: the newest entries that are kept.  Only a visible page holds the connection, as browsers open six to a service;
 * one that is shown again goes on after its last entry.
 */
export function useStream(path, after, kind, most) {
  const [found, setFound] = useState({ path: null, entries: [] });
  useEffect(() => {
    if (!path) return undefined;
    let waiting = [], timer = 0, again = 0, last = after, source = null, isOver = false;
    setFound({ path, entries: [] });
    const flush = () => {
      const taken = waiting;
      timer = 0;
      waiting = [];
      setFound((before) => ({ path, entries: [...before.entries, ...taken].slice(-most) }));
    };
    const open = () => {
      source = new EventSource(withParameter(path, "after", last));
      source.addEventListener(kind, (message) => {
        const entry = JSON.parse(message.data);
        if (entry.seq <= last) return;
        last = entry.seq;
        waiting.push(entry);
        // Drawn at most ten times a second, whatever arrives.
        timer ||= setTimeout(flush, 100);
      });
      source.addEventListener("end", () => { isOver = true; source.close(); });
      // The browser connects again by itself, but not after an answer that is an error.
      source.addEventListener("error", () => {
        if (source?.readyState === EventSource.CLOSED && !isOver) { clearTimeout(again); again = setTimeout(shown, 3000); }
      });
    };
    const shown = () => {
      source?.close();
      source = null;
      if (document.visibilityState === "visible" && !isOver) open();
    };
    shown();
    document.addEventListener("visibilitychange", shown);
    return () => { isOver = true; source?.close(); clearTimeout(timer); clearTimeout(again); document.removeEventListener("visibilitychange", shown); };
  }, [path, kind, most]);
  return found.path === path ? found.entries : [];
}

/** `{page, entries, error}` of a job: the entries of the page that `read` gives, and those that follow in the stream. */
export function useEntries(job, path, kind, most, read) {
  const before = useRead(path, read, 0), page = before.value;
  const last = page?.items.at(-1)?.seq ?? 0;
  const later = useStream(page && !job.terminal ? path : null, last, kind, most);
  // A job that ended meanwhile has its last entries in the list.
  useEffect(() => { if (job.terminal && page) before.reload(); }, [job.terminal]);
  return { page, entries: useMemo(() => [...(page?.items ?? []), ...later.filter((one) => one.seq > last)], [page, later]), error: before.error };
}
