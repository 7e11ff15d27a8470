// A chat whose tokens show how sure the model was.

import { events } from "./api.js";
import { h, setText } from "./dom.js";
import { duration, percent, rate } from "./format.js";

const ALTERNATIVES = 5;
const UNSEEN = /^[\p{C}\p{M}\p{Zl}\p{Zp}]*$/u; // Tokens such as "\f" and "\n", which would have no width to be clicked on.

export class Playground {
  constructor(status, report) {
    this.status = status;
    this.report = report;
    this.messages = [];
    this.sending = null;
    this.begun = false; // A token can be reached by keyboard.
    this.model = h("select", { name: "model", required: true });
    this.turns = h("div", { "aria-live": "polite" });
    this.alternatives = h("div", { id: "alternatives", "aria-live": "polite" });
    this.figures = h("p", { class: "faint" });
    this.text = h("textarea", { rows: "3", required: true, placeholder: "Say something", onkeydown: (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); this.form.requestSubmit(); }
    } });
    this.stop = h("button", { type: "button", class: "quiet", disabled: true, onclick: () => this.sending?.abort() }, "Stop");
    this.send = h("button", { type: "submit" }, "Send");
    this.form = h("form", { onsubmit: (event) => { event.preventDefault(); this.submit(); } },
      h("label", {}, "Message", this.text),
      h("div", { class: "actions" }, h("button", { type: "button", class: "quiet", onclick: () => this.clear() }, "New chat"), this.stop, this.send));
    this.settings = h("form", { class: "card", onsubmit: (event) => event.preventDefault() }, h("h2", {}, "Settings"),
      h("label", {}, "Model", this.model),
      h("label", {}, "System prompt", h("textarea", { name: "system", rows: "2" })),
      setting("Temperature", "temperature", { min: "0", max: "2", step: "0.1" }),
      setting("Top p", "top_p", { min: "0", max: "1", step: "0.05" }),
      setting("Most tokens", "max_tokens", { min: "1", value: "256" }),
      setting("Seed", "seed", { min: "0" }),
      h("label", { class: "check", style: { "margin-top": "8px" } }, h("input", { type: "checkbox", name: "logprobs", checked: true }), "Show alternatives"));
    this.element = h("div", {}, h("h1", {}, "Playground"), h("div", { class: "play" },
      h("div", {}, h("div", { class: "card" }, this.turns, this.figures, this.form), this.alternatives), this.settings));
  }

  update() {
    const names = this.status.running();
    if (names.join("\n") === [...this.model.options].map((one) => one.value).join("\n")) return;
    const chosen = this.model.value;
    this.model.replaceChildren(...names.map((name) => h("option", { value: name }, name)));
    if (names.includes(chosen)) this.model.value = chosen;
  }

  clear() {
    this.sending?.abort();
    this.messages = [];
    this.turns.replaceChildren();
    this.begun = false;
    this.alternatives.replaceChildren();
    setText(this.figures, "");
    this.text.focus();
  }

  async submit() {
    const text = this.text.value;
    if (this.sending || !text.trim()) return;
    this.text.value = "";
    this.messages.push({ role: "user", content: text });
    this.turn("user").textContent = text;
    const answer = this.turn("assistant");
    this.sending = new AbortController();
    this.send.disabled = true;
    this.stop.disabled = false;
    const said = { text: "" };
    const worked = await this.report(() => this.stream(answer, said, this.sending.signal));
    this.sending = null;
    this.send.disabled = false;
    this.stop.disabled = true;
    if (said.text) this.messages.push({ role: "assistant", content: said.text });
    else if (!worked) {
      this.messages.pop();
      this.text.value = text;
      answer.parentElement.previousSibling.remove();
      answer.parentElement.remove();
    }
  }

  async stream(answer, said, signal) {
    const began = performance.now();
    let first = null, tokens = 0, reason = "stopped";
    try {
      for await (const event of events("/v1/chat/completions", this.body(), signal)) {
        const choice = event.choices?.[0];
        if (event.usage) tokens = event.usage.completion_tokens;
        if (!choice) continue;
        first ??= choice.delta?.content ? performance.now() : null;
        const text = choice.delta?.content ?? "";
        said.text += text;
        if (choice.logprobs?.content) answer.append(...this.tokens(choice.logprobs.content, text));
        else answer.append(text);
        reason = choice.finish_reason ?? reason;
      }
    } catch (error) {
      if (!signal.aborted) throw error;
    }
    const took = (performance.now() - (first ?? began)) / 1000;
    const speed = tokens > 1 && first ? ` · ${rate((tokens - 1) / took)} tokens/s` : "";
    setText(this.figures, `${tokens ? `${tokens} tokens · ` : ""}first after ${first ? duration((first - began) / 1000) : "–"}${speed} · ${reason}`);
  }

  body() {
    const given = this.settings.elements;
    const system = given.system.value.trim();
    const body = { model: this.model.value, messages: [...(system ? [{ role: "system", content: system }] : []), ...this.messages], stream_options: { include_usage: true } };
    for (const name of ["temperature", "top_p", "max_tokens", "seed"]) if (given[name].value !== "") body[name] = Number(given[name].value);
    if (given.logprobs.checked) Object.assign(body, { logprobs: true, top_logprobs: ALTERNATIVES });
    return body;
  }

  turn(role) {
    const text = h("div", { class: "text" });
    this.turns.append(h("div", { class: "turn" }, h("h2", {}, role), text));
    return text;
  }

  // The tokens of one event, and the text that they made. What an end adds to them is no part of the text.
  tokens(listed, text) {
    let rest = text;
    return listed.map((one) => {
      const inText = rest.startsWith(one.token);
      if (inText) rest = rest.slice(one.token.length);
      return this.token(one, inText || rest !== "");
    });
  }

  token(one, inText) {
    const sure = Math.exp(one.logprob);
    const doubt = `${Math.round(100 * (1 - sure))}%`;
    const element = h("span", {
      class: ["token", inText ? "" : "end", UNSEEN.test(one.token) ? "unseen" : ""].join(" ").trim(), role: "button", tabindex: this.begun ? "-1" : "0",
      "aria-expanded": "false", "aria-label": JSON.stringify(one.token), style: { "--doubt": doubt },
    }, one.token);
    this.begun = true;
    element.addEventListener("click", () => this.show(element, one, sure));
    element.addEventListener("keydown", (event) => this.onKey(event, element));
    return element;
  }

  show(element, one, sure) {
    for (const other of this.turns.querySelectorAll('[aria-expanded="true"]')) other.setAttribute("aria-expanded", "false");
    element.setAttribute("aria-expanded", "true");
    this.reach(element);
    this.alternatives.replaceChildren(alternativesOf(one, sure));
  }

  // One token is reached by Tab, the others from there by the arrows.
  reach(element) {
    for (const other of this.turns.querySelectorAll('.token[tabindex="0"]')) other.setAttribute("tabindex", "-1");
    element.setAttribute("tabindex", "0");
    element.focus();
  }

  onKey(event, element) {
    const all = [...this.turns.querySelectorAll(".token")];
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step) this.reach(all[Math.min(all.length - 1, Math.max(0, all.indexOf(element) + step))]);
    else if (event.key === "Enter" || event.key === " ") element.click();
    else return;
    event.preventDefault();
  }

  close() {
    this.sending?.abort();
  }
}

function alternativesOf(one, sure) {
  const listed = one.top_logprobs.map((each) => [each.token, Math.exp(each.logprob)]);
  if (!listed.some(([text]) => text === one.token)) listed.push([one.token, sure]);
  const rows = listed.map(([text, share]) => h("tr", {},
    h("td", {}, h("code", {}, JSON.stringify(text)), text === one.token ? " (chosen)" : ""),
    h("td", { class: "number" }, percent(share)),
    h("td", { "aria-hidden": "true" }, h("span", { class: "bar", style: { width: `${Math.round(120 * share)}px` } }))));
  return h("div", { class: "card", style: { "margin-top": "16px" } }, h("table", { class: "list" }, h("caption", {}, `Instead of ${JSON.stringify(one.token)}`),
    h("thead", {}, h("tr", {}, ["Token", "Probability", ""].map((title) => (title ? h("th", { scope: "col" }, title) : h("td", {}))))), h("tbody", {}, rows)));
}

function setting(label, name, more) {
  return h("label", {}, label, h("input", { name, type: "number", placeholder: "the model's", autocomplete: "off", ...more }));
}
