// Calls of this server, with the key that the user typed into this tab.

const KEY = "radiximp-key";
const TIMEOUT_MS = 180_000; // a scheduler under load answers between two batches

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export const key = () => sessionStorage.getItem(KEY) ?? "";

export function setKey(value) {
  if (value) sessionStorage.setItem(KEY, value);
  else sessionStorage.removeItem(KEY);
}

/** The answer's JSON; null for 304. Throws ApiError. */
export async function call(method, path, { body, headers = {} } = {}) {
  const { content } = await ask(method, path, { body, headers });
  return content;
}

/** {content, etag}. */
export async function ask(method, path, { body, headers = {} } = {}) {
  const sent = { ...headers };
  if (key()) sent.Authorization = `Bearer ${key()}`;
  if (body !== undefined) sent["Content-Type"] = "application/json";
  const response = await reach(path, {
    method,
    headers: sent,
    body: body === undefined ? undefined : JSON.stringify(body),
    cache: "no-store",
    signal: AbortSignal.timeout(TIMEOUT_MS),
  });
  if (response.status === 304) return { content: null, etag: headers["If-None-Match"] };
  const content = await response.json().catch(() => ({}));
  if (!response.ok) {
    const said = content.detail ?? content.message ?? content.error ?? response.statusText;
    throw new ApiError(response.status, typeof said === "string" ? said : JSON.stringify(said));
  }
  return { content, etag: response.headers.get("ETag") };
}

async function reach(path, options) {
  try {
    return await fetch(path, options);
  } catch (error) {
    throw new Error(`no answer from the server: ${error.message}`);
  }
}

/** Runs `work` again and again, each time `work`'s result in seconds after it ended; not while the page is hidden, nor unless `mayRun`. */
export class Repeating {
  constructor(work, mayRun) {
    this.work = work;
    this.mayRun = mayRun;
    this.timer = 0;
    this.isRunning = false;
    document.addEventListener("visibilitychange", () => document.hidden || this.now());
  }

  async now() {
    clearTimeout(this.timer);
    if (this.isRunning || !this.mayRun()) return;
    this.isRunning = true;
    let pause = 5;
    try {
      pause = await this.work();
    } finally {
      this.isRunning = false;
      if (!document.hidden) this.timer = setTimeout(() => this.now(), pause * 1000);
    }
  }
}
