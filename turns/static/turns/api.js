// Speaks to /api/v1 as the person who is signed in. Every refusal becomes a Problem.

const BASE = "/api/v1";
const SECONDS = 15;

export class Problem extends Error {
  /** `status` 0: no answer came, so nobody knows whether the request arrived. */
  constructor(status, code, message, retryAfter = 0) {
    super(message);
    Object.assign(this, { status, code, retryAfter });
  }

  /** Whether the same request may be sent again, with the same key. */
  get mayPass() {
    return this.status === 0 || this.status >= 500;
  }
}

export async function call(method, path, body) {
  return ask(method, BASE + path, body);
}

export async function ask(method, address, body) {
  let response;
  try {
    response = await fetch(address, {
      method,
      headers: {
        Accept: "application/json",
        ...(body === undefined ? {} : { "Content-Type": "application/json" }),
        ...(method === "GET" ? {} : { "X-CSRFToken": cookie("csrftoken") }),
      },
      body: body === undefined ? undefined : JSON.stringify(body),
      credentials: "same-origin",
      redirect: "error",
      signal: AbortSignal.timeout(SECONDS * 1000),
    });
    if (response.status === 204) return null;
    const answer = await response.json();
    if (response.ok) return answer;
    throw new Problem(
      response.status,
      answer.code ?? "",
      answer.message ?? "The service did not accept this.",
      Number(response.headers.get("Retry-After")) || 0,
    );
  } catch (error) {
    if (error instanceof Problem) throw error;
    if (response && !response.ok && response.status >= 400) {
      throw new Problem(response.status, "", "The service cannot answer right now.");
    }
    throw new Problem(0, "", "The service cannot be reached right now.");
  }
}

/** "1 byte", "2,000 bytes": a number and what is counted. */
export function counted(number, one) {
  return `${number.toLocaleString()} ${one}${number === 1 ? "" : "s"}`;
}

/** A key nobody has used: the service takes a request with a known one for a repetition. */
export function newKey() {
  // randomUUID is missing where the page came over plain HTTP from another machine
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

function cookie(name) {
  const found = document.cookie.split("; ").find((pair) => pair.startsWith(`${name}=`));
  return found ? decodeURIComponent(found.slice(name.length + 1)) : "";
}
