// Calls to the gateway: those of gRPC as JSON, and streamed chats.

const KEY = "headrace-key";

export const key = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (value) => (value ? sessionStorage.setItem(KEY, value) : sessionStorage.removeItem(KEY)),
};

export class CallError extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

function headers() {
  const found = { "content-type": "application/json" };
  if (key.get()) found.authorization = `Bearer ${key.get()}`;
  return found;
}

async function failure(response) {
  let answer = {};
  try {
    answer = await response.json();
  } catch {
    // A proxy's page, or a connection that broke: the status says what there is to say.
  }
  const problem = answer.error ?? answer;
  return new CallError(response.status, problem.code ?? "", problem.message ?? `the gateway answers ${response.status}`);
}

// Make a unary call of the contract, such as call("ModelService/ListModels", {}).
export async function call(method, message = {}, signal = undefined) {
  const response = await fetch(`/headrace.v1.${method}`, { method: "POST", headers: headers(), body: JSON.stringify(message), signal });
  if (!response.ok) throw await failure(response);
  return response.json();
}

// Yield the events of a streamed answer.
export async function* events(path, body, signal) {
  const response = await fetch(path, { method: "POST", headers: headers(), body: JSON.stringify({ ...body, stream: true }), signal });
  if (!response.ok) throw await failure(response);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const data = part.split("\n").filter((line) => line.startsWith("data: ")).map((line) => line.slice(6)).join("\n");
      if (!data || data === "[DONE]") continue;
      const event = JSON.parse(data);
      if (event.error) throw new CallError(200, event.error.code, event.error.message);
      yield event;
    }
  }
}
