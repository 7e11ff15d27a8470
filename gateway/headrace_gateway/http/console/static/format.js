// Numbers and times as people read them.

const ENUM = /^(MODEL_STATE|MODEL_PHASE|GENERATE_STATUS|FINISH_REASON)_/;

export const word = (name) => (name ?? "").replace(ENUM, "").replaceAll("_", " ").toLowerCase();

export const count = (value) => Number(value ?? 0).toLocaleString("en", { maximumFractionDigits: 0 });

export const rate = (value) => Number(value ?? 0).toLocaleString("en", { maximumFractionDigits: value < 10 ? 1 : 0 });

export const percent = (share) => (share == null ? "–" : `${(100 * share).toFixed(share && share < 0.1 ? 1 : 0)} %`);

export function bytes(value) {
  let number = Number(value ?? 0);
  for (const unit of ["B", "KiB", "MiB", "GiB", "TiB"]) {
    if (number < 1024 || unit === "TiB") return `${number < 10 && unit !== "B" ? number.toFixed(1) : Math.round(number)} ${unit}`;
    number /= 1024;
  }
}

// Seconds of a duration such as "0.012s"; undefined stays.
export const seconds = (text) => (text == null ? undefined : parseFloat(text));

export function duration(value) {
  if (value == null) return "–";
  if (value === 0) return "0";
  if (value < 1) return `${(1000 * value).toFixed(value < 0.01 ? 1 : 0)} ms`;
  if (value < 60) return `${value.toFixed(1)} s`;
  const minutes = Math.floor(value / 60);
  if (minutes < 60) return `${minutes} min ${Math.floor(value % 60)} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

export const age = (time) => (time ? duration(Math.max(0, (Date.now() - Date.parse(time)) / 1000)) : "–");
