// What the gateway says of itself and its engines, asked once a second while the page is seen.

import { call, CallError } from "./api.js";
import { seconds } from "./format.js";

const EVERY = 1000; // ms
const KEPT = 600; // samples: ten minutes
const PAGE = 200; // requests

export class Status extends EventTarget {
  constructor() {
    super();
    this.server = null;
    this.stats = [];
    this.models = [];
    this.requests = [];
    this.moreRequests = false;
    this.missing = [];
    this.allRequests = false;
    this.problem = null;
    this.model = ""; // The only one that charts show; "": all.
    this.samples = [];
    this.timer = null;
    document.addEventListener("visibilitychange", () => (document.hidden ? this.pause() : this.ask()));
  }

  pause() {
    clearTimeout(this.timer);
    this.timer = null;
  }

  // Ask now, and then once a second.
  async ask() {
    this.pause();
    this.current?.abort();
    const current = (this.current = new AbortController());
    try {
      await this.refresh(current.signal);
      this.problem = null;
    } catch (error) {
      if (current.signal.aborted) return;
      this.problem = error instanceof CallError ? error : new CallError(0, "unreachable", "The gateway cannot be reached.");
    }
    if (current.signal.aborted) return;
    this.dispatchEvent(new Event("change"));
    if (!document.hidden) this.timer = setTimeout(() => this.ask(), EVERY);
  }

  async refresh(signal) {
    this.server = await call("EngineService/GetServerInfo", {}, signal);
    const reached = (this.server.engines ?? []).some((engine) => engine.reachable);
    const listed = { runningOnly: !this.allRequests, pageSize: PAGE };
    const [stats, models, requests] = reached
      ? await Promise.all([
          call("EngineService/GetEngineStat", {}, signal),
          call("ModelService/ListModels", {}, signal),
          call("RequestService/ListRequests", listed, signal),
        ])
      : [{}, {}, {}];
    this.stats = stats.stats ?? [];
    this.models = (models.models ?? []).filter((one) => one.modelName);
    this.requests = requests.requests ?? [];
    this.moreRequests = Boolean(requests.nextPageToken);
    this.missing = requests.missing ?? [];
    this.samples.push({ time: Date.now() / 1000, stats: this.stats });
    if (this.samples.length > KEPT) this.samples.shift();
  }

  // Statistics of the chosen model, or all.
  chosen(stats = this.stats) {
    return this.model ? stats.filter((one) => one.modelName === this.model) : stats;
  }

  running() {
    const names = this.models.filter((one) => one.state === "MODEL_STATE_RUNNING").map((one) => one.modelName);
    return [...new Set(names)].sort();
  }
}

const sum = (stats, field) => stats.reduce((total, one) => total + Number(one[field] ?? 0), 0);
const largest = (values) => (values.length ? Math.max(...values) : null);

// What charts and tiles show of statistics.
export const figures = {
  generated: (stats) => sum(stats, "generatedTps"),
  prefilled: (stats) => sum(stats, "prefilledTps"),
  running: (stats) => sum(stats, "running"),
  waiting: (stats) => sum(stats, "waiting"),
  used: (stats) => share(sum(stats, "blocksUsed"), sum(stats, "blocksTotal")),
  cached: (stats) => share(sum(stats, "blocksCached"), sum(stats, "blocksTotal")),
  hits: (stats) => {
    const hit = sum(stats, "prefixCacheHitTokens");
    return share(hit, hit + sum(stats, "prefixCacheMissTokens"));
  },
  stepP50: (stats) => largest(stats.map((one) => seconds(one.stepTimeP50)).filter((one) => one != null)),
  stepP99: (stats) => largest(stats.map((one) => seconds(one.stepTimeP99)).filter((one) => one != null)),
};

function share(part, whole) {
  return whole ? part / whole : null;
}
