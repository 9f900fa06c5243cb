// Requests to the server of this page. The key is in memory alone: from the address's fragment, or typed in.

let key = new URLSearchParams(location.hash.slice(1)).get("key") ?? "";

export class Refused extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

export const known = () => key !== "";

export function enter(given) {
  key = given.trim();
}

export async function ask(path, body, signal) {
  const headers = key ? { Authorization: `Bearer ${key}` } : {};
  const options = { headers, cache: "no-store", credentials: "omit", signal };
  if (body !== undefined) {
    options.method = "POST";
    options.body = JSON.stringify(body);
    headers["Content-Type"] = "application/json";
  }
  let answer;
  try {
    answer = await fetch(path, options);
  } catch (failure) {
    if (failure.name === "AbortError") throw failure;
    throw new Refused(0, "the server of this page does not answer; start it again and reload");
  }
  const content = await answer.json().catch((failure) => {
    if (failure.name === "AbortError") throw failure;
    return {};
  });
  if (!answer.ok) throw new Refused(answer.status, content.detail ?? `the server answered ${answer.status}`);
  return content;
}
