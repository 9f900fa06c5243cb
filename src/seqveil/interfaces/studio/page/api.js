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

async function post(path, type, body, signal) {
  const headers = { Authorization: `Bearer ${key}`, "Content-Type": type };
  let answer;
  try {
    answer = await fetch(`/v1/page/${path}`, { method: "POST", headers, body, signal, cache: "no-store", credentials: "omit" });
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

export const ask = (path, body, signal) => post(path, "application/json", JSON.stringify(body), signal);

export const upload = (file) => post(`upload?file=${encodeURIComponent(file.name)}`, "application/octet-stream", file);
